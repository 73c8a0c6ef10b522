"""Compiles the simulated accelerator for the torch that is installed, once for each state of its source.

The library is kept in the user's cache folder, by torch's version and a hash of the source and the compiler's options.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from platformdirs import user_cache_dir

from fastio.errors import ToolUnavailableError

TOOL = "simulated"
_SOURCE = Path(__file__).parent / "device"
_TORCH = Path(torch.__file__).parent
_PARTS = 2
_OPTIONS = (
    *("-std=c++20", "-O1", "-fPIC", "-Wall", "-Wextra"),
    f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
)


def library() -> Path:
    """The path of the shared library. It is compiled if it is not there, in two parts at once: about a minute.

    Raises ToolUnavailableError, which says what to install, if it cannot be built. Processes that build at the same
    time wait for the first one.
    """
    if missing := why_not_buildable():
        raise ToolUnavailableError(TOOL, *missing)
    sources = sorted(_SOURCE.glob("*/*.cpp"))
    contents = [source.read_bytes() for source in (*sorted(_SOURCE.glob("*/*.hpp")), *sources)]
    digest = _digest(" ".join([_compiler(), *_OPTIONS, str(torch.version.git_version)]).encode(), *contents)
    folder = Path(user_cache_dir("fastio", appauthor=False)).expanduser() / "simulated" / f"torch-{torch.__version__}"
    path = folder / f"{digest}.so"
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling the same
            if not path.exists():
                _build(sources, path)
    except OSError as error:
        raise ToolUnavailableError(TOOL, f"it cannot be built in {folder}: {error}", "set XDG_CACHE_HOME") from error
    return path


def why_not_buildable() -> tuple[str, str] | None:
    """What a build lacks here, and what to install; None if nothing."""
    if not _compiler():
        return "no C++ compiler (g++ or c++, or that of CXX) on PATH", "install g++ 11 or newer"
    header = _TORCH / "include" / "torch" / "csrc" / "api" / "include" / "torch" / "torch.h"
    if not header.exists():
        return f"torch's C++ headers are missing: there is no {header}", "install torch from a wheel, which has them"
    return None


def _compiler() -> str:
    named = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++"]
    return next(filter(None, map(shutil.which, named)), "")


def _build(sources: list[Path], path: Path) -> None:
    include = _TORCH / "include"
    headers = ["-isystem", str(include), "-isystem", str(include / "torch" / "csrc" / "api" / "include")]
    command = [_compiler(), f"-I{_SOURCE}", *_OPTIONS, *headers]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        parts = [(Path(folder) / f"part{number}", sources[number::_PARTS]) for number in range(_PARTS)]
        with ThreadPoolExecutor(_PARTS) as pool:
            list(pool.map(lambda part: _compile(command, *part), parts))
        linked = Path(folder) / path.name
        objects = [str(part.with_suffix(".o")) for part, _ in parts]
        libraries = [f"-L{_TORCH / 'lib'}", "-ltorch_cpu", "-lc10", "-lpthread"]
        _run([_compiler(), "-shared", *objects, *libraries, "-o", str(linked)])
        linked.replace(path)


def _compile(command: list[str], part: Path, sources: list[Path]) -> None:
    """Compile sources as one, because each alone spends most of its time on torch's headers."""
    part.with_suffix(".cpp").write_text("".join(f'#include "{source}"\n' for source in sources), encoding="utf-8")
    _run([*command, "-c", str(part.with_suffix(".cpp")), "-o", str(part.with_suffix(".o"))])


def _run(command: list[str]) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        cure = "it needs a compiler of C++20, such as g++ 11"
        raise ToolUnavailableError(TOOL, f"{' '.join(command)} failed:\n{result.stderr}", cure)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]
