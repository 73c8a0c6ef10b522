"""The simulated accelerator is built on demand, once, and says what a build lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fastio import ToolUnavailableError
from fastio.devices.simulated import build

_COMPILER = """#!/bin/sh
echo call >> "$CALLS"
sleep 0.1
while [ "$1" != -o ]; do shift; done
echo built > "$2"
"""
_BUILD = "from fastio.devices.simulated import build; print(build.library())"


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line to a file for each call; it lies in an empty cache folder."""
    path = tmp_path / "compiler"
    path.write_text(_COMPILER, encoding="ascii")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return path


def test_processes_that_build_at_once_build_once(compiler: Path, tmp_path: Path) -> None:
    builders = [
        subprocess.Popen([sys.executable, "-c", _BUILD], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(3)
    ]
    paths = {builder.communicate()[0].strip() for builder in builders}
    assert [builder.returncode for builder in builders] == [0, 0, 0]
    (path,) = map(Path, paths)
    assert path.read_text(encoding="ascii") == "built\n"
    assert path.parent == tmp_path / "cache" / "fastio" / "simulated" / f"torch-{torch.__version__}"
    assert len((tmp_path / "calls").read_text(encoding="ascii").splitlines()) == 3  # two parts, and the linker
    assert build.library() == path
    assert len((tmp_path / "calls").read_text(encoding="ascii").splitlines()) == 3
    assert sorted(one.name for one in path.parent.iterdir()) == sorted([path.name, "lock"])


def test_another_compiler_builds_another_library(compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.library()
    monkeypatch.setenv("CXX", str(compiler.rename(compiler.with_name("other"))))
    assert build.library() != first


def test_a_failed_build_tells_the_compilers_words_and_is_tried_again(compiler: Path) -> None:
    working = compiler.read_text(encoding="ascii")
    compiler.write_text("#!/bin/sh\necho no such header >&2\nexit 1\n", encoding="ascii")
    with pytest.raises(ToolUnavailableError, match=r"(?s)compiler .* failed:.*no such header.*C\+\+20"):
        build.library()
    compiler.write_text(working, encoding="ascii")
    assert build.library().exists()


def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ToolUnavailableError, match=r"no C\+\+ compiler .* on PATH; install g\+\+"):
        build.library()


def test_without_torchs_headers_it_says_what_to_install(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "_TORCH", tmp_path)
    with pytest.raises(ToolUnavailableError, match=r"headers are missing: there is no .*torch\.h; install torch"):
        build.library()


def test_a_cache_folder_that_cannot_be_used_is_named(
    compiler: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(compiler))
    with pytest.raises(ToolUnavailableError, match=rf"cannot be built in {compiler}.*XDG_CACHE_HOME"):
        build.library()
