"""CRC-32s of a tensor's bytes block by block, so that a part of it can be read and checked without the rest.

A border between what is wanted and what is not costs at most one block. So a block has at most a 32nd of a tensor's
bytes, and a tensor at most 64 of them, which take 256 bytes of the metadata. Blocks of less than 64 KiB would cost more
by the number of reads than they save, those of more than 4 MiB would save nothing: 4 bytes for 4 MiB are a millionth.
"""

from __future__ import annotations

from typing import NamedTuple

from fastio._native import crc32_of_blocks

LEAST, MOST = 64 << 10, 4 << 20
_COUNT = 64
_WIDTH = 4  # bytes of a CRC-32


def block_bytes(nbytes: int) -> int:
    """Return the bytes of a block of a tensor of ``nbytes``: a power of two, so of whole elements and whole pages."""
    block = LEAST
    while block < MOST and nbytes > _COUNT * block:
        block *= 2
    return block


class BlockChecksums(NamedTuple):
    """The CRC-32s of ``nbytes`` in blocks of ``block`` bytes, the last of which may be shorter; four bytes each."""

    nbytes: int
    block: int
    crcs: bytes

    def whole(self) -> int:
        """Return the CRC-32 of all bytes."""
        return crc32_of_blocks(self.crcs, self.nbytes, self.block)

    def are_of(self, nbytes: int, crc: int) -> bool:
        """Return whether they can be those of so many bytes with that CRC-32."""
        return (
            self.nbytes == nbytes
            and self.block >= LEAST
            and self.block & (self.block - 1) == 0
            and len(self.crcs) == -(-nbytes // self.block) * _WIDTH
            and self.whole() == crc
        )

    def around(self, begin: int, end: int) -> tuple[int, int, int]:
        """Return where the blocks that hold the bytes from ``begin`` to ``end`` begin and end, and their CRC-32."""
        first, last = begin // self.block, -(-end // self.block)
        start, stop = first * self.block, min(last * self.block, self.nbytes)
        return start, stop, crc32_of_blocks(self.crcs[first * _WIDTH : last * _WIDTH], stop - start, self.block)
