"""Closes objects when the interpreter exits, so that saves in progress finish and their errors are reported."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Closable(Protocol):
    """An object that can be closed at exit."""

    def close(self) -> None:
        """Close it; raises an error that was not raised before."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(closable: Closable) -> None:
    """Close an object when the interpreter exits, if it still exists. The interpreter prints the first error."""
    _open.add(closable)


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
