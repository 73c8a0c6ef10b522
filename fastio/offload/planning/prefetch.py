"""The order in which backward asks for blobs, recorded once and then followed. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

_FARTHEST = 64  # uses looked ahead at most: a walk over more would cost more than it hides


class Order:
    """The uses of blobs in backward (by ordinal; a blob may be used more than once) and how far backward has come."""

    def __init__(self, uses: Sequence[int]) -> None:
        self._uses = uses
        self._places: dict[int, list[int]] = defaultdict(list)
        for place, ordinal in enumerate(uses):
            self._places[ordinal].append(place)
        self._next = 0

    def used(self, ordinal: int) -> None:
        """Backward asked for this blob: go on behind its next place, or its first in a second backward."""
        places = self._places.get(ordinal)
        if places:
            self._next = 1 + next((place for place in places if place >= self._next), places[0])

    def coming(self) -> Iterator[int]:
        """The ordinals that come next, each once, nearest first."""
        seen: set[int] = set()
        for ordinal in self._uses[self._next : self._next + _FARTHEST]:
            if ordinal not in seen:
                seen.add(ordinal)
                yield ordinal
