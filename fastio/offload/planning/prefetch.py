"""The order in which backward uses activations, recorded once and then followed. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class Order:
    """The uses of activations in backward (by ordinal; each may be used more than once), and the position in it."""

    def __init__(self, uses: Sequence[int]) -> None:
        self.uses = uses
        self.position = 0  # of the next use
        self._last = {ordinal: place for place, ordinal in enumerate(uses)}

    def used(self, ordinal: int) -> bool:
        """Move behind the next use of this activation, or behind its first use in a second backward.

        Return whether it was the use that was expected next.
        """
        position = self.position
        if position < len(self.uses) and self.uses[position] == ordinal:
            self.position = position + 1
            return True
        places = [place for place, used in enumerate(self.uses) if used == ordinal]
        if places:
            self.position = 1 + next((place for place in places if place >= position), places[0])
        return False

    def comes_before(self, ordinal: int, end: int) -> bool:
        """Return whether an activation is used next at a place before ``end``."""
        return self._last.get(ordinal, -1) >= self.position and ordinal in self.uses[self.position : end]
