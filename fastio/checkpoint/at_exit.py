"""Closes objects when the interpreter exits, so that saves in progress finish and their errors are reported."""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 -- registers what it does at exit before this module does
import functools
import threading
import weakref
from typing import Any, Protocol


class Closable(Protocol):
    """An object that can be closed at exit."""

    def close(self) -> None:
        """Close it; raises an error that was not raised before."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(closable: Closable) -> None:
    """Close an object when the interpreter exits, if it still exists. The interpreter prints the first error."""
    _open.add(closable)


class Work(Protocol):
    """Work on threads that can be waited for."""

    def finish(self) -> None:
        """Return when it has ended; raises nothing."""


_working: weakref.WeakSet[Work] = weakref.WeakSet()


def finish_at_exit(work: Work) -> None:
    """Wait for work when the interpreter exits, before executors of threads refuse new calls, which uploads make."""
    _working.add(work)
    _register()


@functools.cache
def _register() -> None:
    register: Any = vars(threading)["_register_atexit"]  # atexit's own functions are called after that
    register(_finish_all)


def _finish_all() -> None:
    for work in list(_working):
        work.finish()


def _close_all() -> None:
    errors = []
    for closable in list(_open):
        try:
            closable.close()
        except Exception as error:  # close the others too
            errors.append(error)
    if errors:
        raise errors[0]


atexit.register(_close_all)
