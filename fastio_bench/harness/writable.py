"""Checks before a measurement that its results can be written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click

from fastio_bench.harness import whole_files


def folder(path: Path, option: str) -> None:
    """Make the folder if it is missing, and a temporary file in it. Raises click.UsageError if that fails."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(prefix=".fastio-bench-", dir=path):
            pass
    except OSError as error:
        raise _refused(path, option, "no file can be made in it", "folder", error) from error


@contextmanager
def file(path: Path, option: str, room: int) -> Iterator[Callable[[bytes], None]]:
    """As :func:`~fastio_bench.harness.whole_files.replacing`, but raises click.UsageError."""
    with ExitStack() as stack:
        try:
            keep = stack.enter_context(whole_files.replacing(path, room))
        except OSError as error:
            raise _refused(path, option, "it cannot be written", "file", error) from error
        yield keep


def _refused(path: Path, option: str, what: str, kind: str, error: OSError) -> click.UsageError:
    return click.UsageError(f"{option} {path}: {what} ({error.strerror}); name a {kind} that you may write")
