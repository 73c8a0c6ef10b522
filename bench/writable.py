"""Whether something can be written, found out before anything is measured that is to be written there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click


def folder(path: Path, option: str) -> None:
    """Make the folder, where it is missing, and a file in it, which goes again.

    click.UsageError where that fails.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".fastio-bench-", dir=path):
            pass
    except OSError as error:
        raise _refused(path, option, "no file can be made in it", "folder", error) from error


def file(path: Path, option: str) -> None:
    """Open the file for writing; it stays as it is, or goes again where there was none.

    click.UsageError where that fails.
    """
    there = path.exists()
    try:
        with open(path, "a"):
            pass
        if not there:
            path.unlink()
    except OSError as error:
        raise _refused(path, option, "it cannot be written", "file", error) from error


def _refused(path: Path, option: str, what: str, kind: str, error: OSError) -> click.UsageError:
    return click.UsageError(f"{option} {path}: {what} ({error.strerror}); name a {kind} that you may write")
