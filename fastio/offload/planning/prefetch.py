"""The order in which backward uses activations, recorded once and then followed. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

_FARTHEST = 64  # most uses to look ahead: scanning more costs more than it hides


class Order:
    """The uses of activations in backward (by ordinal; each may be used more than once), and the position in it."""

    def __init__(self, uses: Sequence[int]) -> None:
        self._uses = uses
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, ordinal in enumerate(uses):
            self._places[ordinal].append(place)
        self._next = 0

    def used(self, ordinal: int) -> None:
        """Move behind the next use of this activation, or behind its first use in a second backward."""
        places = self._places.get(ordinal)
        if places:
            self._next = 1 + next((place for place in places if place >= self._next), places[0])

    def coming(self) -> Iterator[int]:
        """Yield the next ordinals, each once, nearest first."""
        seen: set[int] = set()
        for ordinal in self._uses[self._next : self._next + _FARTHEST]:
            if ordinal not in seen:
                seen.add(ordinal)
                yield ordinal
