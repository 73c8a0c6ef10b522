"""A device in memory that loses power: at any write or flush, with any part of what was not flushed."""

from __future__ import annotations

import random

SECTOR = 512


class PowerCut(Exception):
    """The device lost its power."""


class FragileDevice:
    """Keeps ``nbytes`` in memory. Before write or flush number ``cut_at`` it raises PowerCut.

    ``after_cut`` is what a device has then: everything that was flushed, and of each sector that was written since, any
    of its versions, also of a part of one write, or garbage. With ``tears`` False, the write that is cut has no effect,
    and the device goes on as it does after the end of a process.
    """

    name, kind = "memory", ""

    def __init__(self, image: bytes, cut_at: int = -1) -> None:
        self.nbytes = len(image)
        self.steps = 0
        self.cut_at = cut_at
        self.tears = True
        self._flushed = bytearray(image)
        self._now = bytearray(image)
        self._unflushed: dict[int, list[bytes]] = {}  # the versions of each sector, by its offset

    def read(self, offset: int, nbytes: int) -> bytes:
        assert 0 <= offset <= offset + nbytes <= self.nbytes
        assert offset % 4096 == nbytes % 4096 == 0
        return bytes(self._now[offset : offset + nbytes])

    def write(self, offset: int, data: bytes | memoryview) -> None:
        data = bytes(data)
        assert 0 <= offset <= offset + len(data) <= self.nbytes
        assert offset % 4096 == len(data) % 4096 == 0
        if not self.tears:
            self._step()
        for at in range(0, len(data), SECTOR):
            self._unflushed.setdefault(offset + at, []).append(data[at : at + SECTOR])
        if self.tears:
            self._step()
        self._now[offset : offset + len(data)] = data

    def flush(self) -> None:
        self._step()
        self._flushed[:] = self._now
        self._unflushed.clear()

    def lock(self, wait_seconds: float) -> None: ...

    def close(self) -> None: ...

    def discard(self) -> None: ...

    def after_cut(self, chance: random.Random) -> bytes:
        share = chance.choice((0.0, 0.1, 0.5, 0.9, 1.0))  # of the sectors that got to the disk
        garbled = chance.choice((0.0, 0.1, 1.0))
        image = bytearray(self._flushed)
        for offset, versions in self._unflushed.items():
            if chance.random() < share:
                is_garbled = chance.random() < garbled
                image[offset : offset + SECTOR] = chance.randbytes(SECTOR) if is_garbled else chance.choice(versions)
        return bytes(image)

    def _step(self) -> None:
        if self.steps == self.cut_at:
            raise PowerCut
        self.steps += 1
