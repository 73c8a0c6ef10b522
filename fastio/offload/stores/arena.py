"""The two-ended arena: resident blocks at the low end, ephemeral ones at the high end (FlashNeuron, section 3.2).

Pure: it returns offsets and touches no memory, so one class serves slabs of host memory and of a device. Ephemeral
blocks are short-lived: the holes they leave stay near their end, and never lie between resident blocks.
"""

from __future__ import annotations

import bisect
from collections.abc import Collection, Iterable

from fastio.sizes import exact_size


class ArenaFullError(MemoryError):
    """The two ends would meet. ``wanted`` and ``gap`` are in bytes; ``gap`` is the largest free run for that end."""

    def __init__(self, wanted: int, gap: int, nbytes: int) -> None:
        self.wanted = wanted
        self.gap = gap
        self.nbytes = nbytes
        super().__init__(
            f"an arena of {exact_size(nbytes)} has no room for a block of {exact_size(wanted)}: the largest free run "
            f"is {exact_size(gap)}; free a block first, or make the arena larger"
        )

    def __reduce__(self) -> tuple[type[ArenaFullError], tuple[int, int, int]]:
        return type(self), (self.wanted, self.gap, self.nbytes)


class Arena:
    """Offsets into ``nbytes`` bytes. Blocks are rounded up to a multiple of ``alignment``, which aligns them."""

    def __init__(self, nbytes: int, alignment: int = 4096) -> None:
        if alignment < 1 or nbytes < 0:
            raise ValueError(f"expected nbytes >= 0 and alignment >= 1, got {nbytes} and {alignment}")
        self.alignment = alignment
        self.nbytes = nbytes // alignment * alignment
        self._low = _End()
        self._high = _End()
        self._blocks: dict[int, tuple[_End, int, int]] = {}  # offset -> end, distance from that end, bytes

    def __repr__(self) -> str:
        return f"<fastio Arena of {self.nbytes} bytes: blocks: {len(self._blocks)}, gap of {self.gap} bytes>"

    def resident(self, nbytes: int) -> int:
        """Return the offset of a new block at the low end, as low as possible. Raises ArenaFullError."""
        distance, rounded = self._take(self._low, nbytes)
        self._blocks[distance] = (self._low, distance, rounded)
        return distance

    def ephemeral(self, nbytes: int) -> int:
        """Return the offset of a new block at the high end, as high as possible. Raises ArenaFullError."""
        distance, rounded = self._take(self._high, nbytes)
        offset = self.nbytes - distance - rounded
        self._blocks[offset] = (self._high, distance, rounded)
        return offset

    def free(self, offset: int) -> None:
        """Free the block at ``offset``; KeyError if there is none."""
        if offset not in self._blocks:
            raise KeyError(f"no block of this arena begins at offset {offset}")
        end, distance, rounded = self._blocks.pop(offset)
        end.free_block(distance, rounded)

    def keep(self, offsets: Collection[int]) -> None:
        """Free all blocks but those at these offsets. Calls that an interrupt ended have no effect after this."""
        found = [(offset, *self._blocks[offset]) for offset in offsets]
        low = _End((distance, nbytes) for _, end, distance, nbytes in found if end is self._low)
        high = _End((distance, nbytes) for _, end, distance, nbytes in found if end is self._high)
        blocks = {at: (low if end is self._low else high, distance, nbytes) for at, end, distance, nbytes in found}
        self._low, self._high, self._blocks = low, high, blocks

    @property
    def offsets(self) -> Collection[int]:
        """Where blocks begin."""
        return self._blocks.keys()

    @property
    def used(self) -> int:
        """Bytes in blocks."""
        return self._low.used + self._high.used

    @property
    def gap(self) -> int:
        """Bytes between the ends."""
        return self.nbytes - self._low.frontier - self._high.frontier

    def _take(self, end: _End, nbytes: int) -> tuple[int, int]:
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}: expected 0 or more")
        rounded = max(1, -(-nbytes // self.alignment)) * self.alignment  # an empty block has an offset of its own
        distance = end.take(rounded, self.gap)
        if distance is None:
            raise ArenaFullError(nbytes, max(self.gap, end.largest_hole), self.nbytes)
        return distance, rounded


class _End:
    """Blocks by their distance from one end: first fit among the holes, then at the frontier.

    ``blocks``: the distance and the bytes of each that there is.
    """

    def __init__(self, blocks: Iterable[tuple[int, int]] = ()) -> None:
        self.frontier = 0
        self.used = 0
        self._holes: list[tuple[int, int]] = []  # (distance, bytes): sorted, merged, none at the frontier
        for distance, nbytes in sorted(blocks):
            if distance > self.frontier:
                self._holes.append((self.frontier, distance - self.frontier))
            self.frontier = distance + nbytes
            self.used += nbytes

    @property
    def largest_hole(self) -> int:
        return max((nbytes for _, nbytes in self._holes), default=0)

    def take(self, nbytes: int, gap: int) -> int | None:
        for number, (distance, length) in enumerate(self._holes):
            if length >= nbytes:
                self._holes[number : number + 1] = [(distance + nbytes, length - nbytes)] if length > nbytes else []
                self.used += nbytes
                return distance
        if nbytes > gap:
            return None
        distance = self.frontier
        self.frontier += nbytes
        self.used += nbytes
        return distance

    def free_block(self, distance: int, nbytes: int) -> None:
        self.used -= nbytes
        number = bisect.bisect_left(self._holes, (distance, 0))
        if number < len(self._holes) and self._holes[number][0] == distance + nbytes:
            nbytes += self._holes.pop(number)[1]
        if number > 0 and sum(self._holes[number - 1]) == distance:
            distance, before = self._holes.pop(number - 1)
            nbytes += before
            number -= 1
        if distance + nbytes == self.frontier:
            self.frontier = distance
        else:
            self._holes.insert(number, (distance, nbytes))
