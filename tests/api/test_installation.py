"""What fastio tells people to install: commands that work wherever it came from, and the packages of the extra."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest

from fastio.runtime import installation
from fastio.runtime.installation import pip_install

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomllib")

# Files that make or state the words; all others ask pip_install.
MAKERS = {
    "fastio/integrations/deepspeed.py",  # another library by its name
    "fastio/integrations/torch_checkpointing.py",
    "fastio/integrations/torchft.py",
    "fastio/integrations/torchtitan.py",
    "fastio/runtime/installation.py",
    "fastio/runtime/native_part.py",  # of the source tree, by its path
    "fastio/testing/__init__.py",
    "fastio_bench/cli.py",  # a dependency that is missing
    "fastio_bench/peers/command.py",
    "fastio_bench/peers/options.py",
    "fastio_bench/peers/peer.py",  # another library by its name
}


def extras(repository: Path) -> dict[str, list[str]]:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    return {"": project["dependencies"], **project["optional-dependencies"]}


def test_the_command_names_the_packages_of_the_extra(repository: Path) -> None:
    for extra, packages in extras(repository).items():
        command = shlex.split(pip_install(extra))
        assert command[:2] == ["pip", "install"]
        # Metadata sorts the bounds of a version.
        wanted = {re.sub(r"\s", "", package.partition(";")[0]).partition(",")[0].split(">=")[0] for package in packages}
        assert {re.split(r"[<>=~!]", one)[0] for one in command[2:]} == wanted
        assert all(">=" in one for one in command[2:])


def test_one_package_of_an_extra(repository: Path) -> None:
    assert pip_install("bench", "matplotlib") == "pip install 'matplotlib>=3.8'"
    assert pip_install(package="rich") == "pip install 'rich>=13.7'"
    assert set(metadata("fastio").get_all("Provides-Extra") or ()) == set(extras(repository)) - {""}


def test_a_copy_without_metadata_says_where_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(name: str) -> list[str]:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "requires", none)
    assert pip_install("gds") == "pip install '.[gds]' in a clone of fastio"
    assert pip_install("bench", "matplotlib") == "pip install matplotlib"


def test_no_text_names_a_release_that_there_is_not(repository: Path) -> None:
    """``pip install 'fastio[x]'`` fails: until there is a release, the extras are those of a clone."""
    told = []
    for folder in ("fastio", "fastio_bench", "fastio_command", "native", "docs", "examples", "."):
        pattern = "*" if folder == "." else "**/*"
        for path in (repository / folder).glob(pattern):
            if path.suffix in {".py", ".md", ".cpp", ".jinja", ".toml"} and "build" not in path.parts:
                text = path.read_text()
                told += [f"{path}: {found}" for found in re.findall(r"pip install (?:-\S+ )*['\"]?fastio\b.*", text)]
                told += [f"{path}: {found}" for found in re.findall(r".*['`\"]fastio\[.*", text)]
    assert [one for one in told if "installation.py" not in one] == []  # it says why that is not told


def test_messages_ask_for_the_command(repository: Path) -> None:
    """A string with ``pip install`` elsewhere would go its own way. Docstrings may name one."""
    found = set()
    for path in (*(repository / "fastio").rglob("*.py"), *(repository / "fastio_bench").rglob("*.py")):
        if "pip install" not in path.read_text():
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and "pip install" in node.value:
                found.add(path.relative_to(repository).as_posix())
    assert found <= MAKERS
