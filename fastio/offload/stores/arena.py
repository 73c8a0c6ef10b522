"""Places for blocks in a piece of memory, each as low as possible: first fit. Pure: offsets, and no memory."""

from __future__ import annotations

import bisect
from collections.abc import Collection

from fastio.sizes import exact_size


class ArenaFullError(MemoryError):
    """No free run has ``wanted`` bytes: the largest has ``gap``, of all ``nbytes``."""

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
        self._blocks: dict[int, int] = {}  # bytes by offset
        self._free: list[tuple[int, int]] = []  # offset and bytes: sorted, merged
        self.keep(())

    def block(self, nbytes: int) -> int:
        """Return the offset of a new block. Raises ArenaFullError."""
        if nbytes < 0:
            raise ValueError(f"nbytes is {nbytes}: expected 0 or more")
        rounded = max(1, -(-nbytes // self.alignment)) * self.alignment  # an empty block has an offset of its own
        for number, (offset, room) in enumerate(self._free):
            if room >= rounded:
                self._free[number : number + 1] = [(offset + rounded, room - rounded)] if room > rounded else []
                self._blocks[offset] = rounded
                return offset
        raise ArenaFullError(nbytes, max((room for _, room in self._free), default=0), self.nbytes)

    def free(self, offset: int) -> None:
        """Free the block at ``offset``; KeyError if there is none."""
        if offset not in self._blocks:
            raise KeyError(f"no block of this arena begins at offset {offset}")
        nbytes = self._blocks.pop(offset)
        number = bisect.bisect_left(self._free, (offset, 0))
        if number < len(self._free) and self._free[number][0] == offset + nbytes:
            nbytes += self._free.pop(number)[1]
        if number > 0 and sum(self._free[number - 1]) == offset:
            number -= 1
            offset, before = self._free.pop(number)
            nbytes += before
        self._free.insert(number, (offset, nbytes))

    def keep(self, offsets: Collection[int]) -> None:
        """Free all blocks but those at these offsets. Calls that an interrupt ended have no effect after this."""
        self._blocks = {offset: self._blocks[offset] for offset in sorted(offsets)}
        ends = [0, *(offset + nbytes for offset, nbytes in self._blocks.items())]
        runs = zip(ends, (*self._blocks, self.nbytes), strict=True)
        self._free = [(end, offset - end) for end, offset in runs if offset > end]

    @property
    def offsets(self) -> Collection[int]:
        """Where blocks begin."""
        return self._blocks.keys()
