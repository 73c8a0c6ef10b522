"""Output that cannot be written: one line on stderr, and exit status 2."""

from __future__ import annotations

import warnings
from pathlib import Path

import click
import pytest
import torch
from click.testing import CliRunner

import fastio
import warm_python
from fastio_command.commands import cli

COMMAND = """
import os, sys
where, *arguments = sys.argv[1:]
if where != "closed":
    os.dup2(os.open("/dev/full", os.O_WRONLY), int(where))
# As Python makes them when it starts; after >&- there is no stdout.
sys.stdout = None if where == "closed" else open(1, "w", closefd=False)
sys.stderr = open(2, "w", closefd=False)
sys.argv = ["fastio", *arguments]
from fastio_command import main
main()
"""


@pytest.mark.parametrize("where", ["1", "closed"])
@pytest.mark.parametrize("command", ["convert", "inspect", "inspect --json", "verify", "tools", "--help"])
def test_stdout_that_cannot_be_written(command: str, where: str, tmp_path: Path) -> None:
    fastio.save({"a": torch.ones(3)}, tmp_path / "a.pt")
    name, *options = command.split()
    paths = {"convert": ["a.pt", "b.safetensors"], "inspect": ["a.pt"], "verify": ["a.pt"]}.get(name, [])
    child = warm_python.run(COMMAND, where, name, *paths, *options, folder=tmp_path)
    assert child.returncode == 2, child.stderr
    why = "No space left on device" if where == "1" else "Bad file descriptor"
    assert child.stderr.startswith(f"fastio: stdout could not be written ({why}): free some space")
    assert child.stderr.count("\n") == 1
    assert name != "convert" or fastio.verify(tmp_path / "b.safetensors").checksummed


def test_stderr_that_cannot_be_written(tmp_path: Path) -> None:
    child = warm_python.run(COMMAND, "2", "verify", "none.pt", folder=tmp_path)
    assert (child.returncode, child.stdout) == (2, "")


def test_a_warning_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def warned() -> None:
        warnings.warn("two\n  lines", UserWarning, stacklevel=1)

    monkeypatch.setitem(cli.commands, "warned", warned)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        result = CliRunner().invoke(cli, ["warned"])
    assert (result.exit_code, result.stderr) == (0, "fastio: warning: two lines\n")
