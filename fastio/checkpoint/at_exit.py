"""What is still being saved when a program ends is finished, and what went wrong with it is said."""

from __future__ import annotations

import atexit
import weakref
from typing import Protocol


class Closable(Protocol):
    """What is closed."""

    def close(self) -> None:
        """Raises what nobody has heard yet."""


_open: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_at_exit(thing: Closable) -> None:
    """Close it when the interpreter ends, if it is there still. An error is printed by the interpreter."""
    _open.add(thing)


def _close_all() -> None:
    errors = []
    for thing in list(_open):
        try:
            thing.close()
        except Exception as error:  # the others are to be closed all the same
            errors.append(error)
    if errors:
        raise errors[0]


atexit.register(_close_all)
