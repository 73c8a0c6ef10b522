"""What becomes of output that cannot be written, as to a full disk: one line on stderr, and exit status 2."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import NoReturn

import click

_TROUBLE = 2


class _Closed(io.TextIOBase):
    """Stands for a stdout that the shell closed (``>&-``), for which Python has None. Every write fails."""

    encoding = "utf-8"

    def write(self, text: str) -> int:
        """Raise OSError, as for a closed descriptor. Does nothing for an empty text."""
        if text:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return 0


def open_stdout() -> None:
    """Let a closed stdout fail when something is printed, instead of losing it silently."""
    if sys.stdout is None:
        sys.stdout = _Closed()


def is_of_output(error: BaseException) -> bool:
    """Whether an error was raised by printing, not by what a command does."""
    at = error.__traceback__
    while at is not None:
        code, module = at.tb_frame.f_code, at.tb_frame.f_globals.get("__name__", "")
        if code is click.echo.__code__ or module == "rich.console":
            return True
        at = at.tb_next
    return False


def end_without_output(error: OSError) -> NoReturn:
    """End with status 2, after one line on stderr if that can be written."""
    cure = "free some space, or send it elsewhere; files that the command has written stay, and are complete"
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"fastio: stdout could not be written ({error.strerror}): {cure}\n")
        sys.stderr.flush()
    for name in ("stdout", "stderr"):  # at exit Python writes what is left in them, and fails again
        try:
            getattr(sys, name).flush()
        except (OSError, ValueError, AttributeError):
            setattr(sys, name, _Closed())
    sys.exit(_TROUBLE)
