"""Names the remote file, instead of the local copy that was worked on, in errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastio.errors import FastIOError
from fastio.runtime.handled_errors import HandledErrors


def renamed_errors(local: str, url: str) -> HandledErrors[FastIOError]:
    """Inside, fastio's errors name ``url`` where they would name the local path, or what lies below it.

    Errors of system calls keep the local path: they are about this machine's disk.
    """
    return HandledErrors(FastIOError, partial(_rename, local, url))


def _rename(local: str, url: str, error: FastIOError) -> None:
    if isinstance(error, OSError):
        return

    def renamed(value: Any) -> Any:
        return value.replace(local, url) if isinstance(value, str) else value

    error.args = tuple(map(renamed, error.args))
    for name, value in vars(error).items():
        setattr(error, name, renamed(value))
