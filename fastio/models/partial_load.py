"""Tells what a load that failed has left in tensors that others can see."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

from fastio.errors import ChecksumError, add_to_message, quoted

_SHOWN = 5  # names of each kind in an error


def listed(what: str, names: Sequence[str]) -> list[str]:
    """``what``, and the names it is true of, at most five of them; nothing if there are none."""
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [f"{what}: {', '.join(map(quoted, names[:_SHOWN]))}{more}"]


class PartialLoad:
    """Which tensors of a ``noun``, such as a module, have got their new values so far.

    ``visible``: the names of those that others can see meanwhile.
    """

    def __init__(self, noun: str, visible: Iterable[str]) -> None:
        self._noun = noun
        self._visible = dict.fromkeys(visible)
        self._loaded: set[str] = set()

    @contextlib.contextmanager
    def step(self, names: Iterable[str] = ()) -> Iterator[None]:
        """Inside, the memory of these tensors changes; an error then says what is loaded, and what is not.

        The error's class stays. If nothing that others see has changed, so does its message.
        """
        changed = self._visible.keys() & names
        try:
            yield
        except Exception as error:
            if self._loaded or changed:
                add_to_message(error, self._said(error, changed))
            raise
        self._loaded |= changed

    def _said(self, error: Exception, changed: set[str]) -> str:
        if isinstance(error, ChecksumError) and error.records:  # all of the step was read, and compared
            self._loaded |= changed.difference(error.records)
            changed = changed.intersection(error.records)
        said = (
            *listed("loaded", [name for name in self._visible if name in self._loaded]),
            *listed("damaged, or read in part", [name for name in self._visible if name in changed]),
            *listed("as they were", [n for n in self._visible if n not in self._loaded and n not in changed]),
        )
        return (
            f"; this {self._noun} is partly filled ({'; '.join(said)}): load it again, from a good copy of the files; "
            "with atomic=True an error leaves it as it was"
        )
