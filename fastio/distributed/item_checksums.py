"""CRC-32s of the items of a data file, and of blocks of them, in DCP's metadata."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.storage import WriteResult

from fastio._native import Control, JoinOnExit, crc32_blocks
from fastio.distributed.items import Image, PlacedItem
from fastio.distributed.stored_items import annotate
from fastio.formats.block_checksums import LEAST, BlockChecksums, block_bytes
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread


@contextlib.contextmanager
def hashing_blocks(image: Image, known: Mapping[str, bytes] = MappingProxyType({})) -> Iterator[dict[int, bytes]]:
    """Compute the CRC-32s of the blocks of tensors in host memory while they are written inside.

    Yields a dict that has them by the numbers of the layout's extents, once the context ended. ``known`` has those that
    need not be computed, by the names of tensors.
    """
    work = _Work(image, known)

    def begin(within: JoinOnExit) -> None:
        with contextlib.suppress(NoThreadError):
            WorkThread(work.run).start(within)

    if work.is_done:
        yield work.found
        return
    with JoinOnExit(work.control, begin):  # even if interrupted: the thread reads the caller's memory
        yield work.found
    work.finish()


def known_blocks(image: Image, known: Mapping[str, bytes]) -> dict[int, bytes] | None:
    """Return what :func:`hashing_blocks` finds, if ``known`` has all of it."""
    work = _Work(image, known)
    return work.found if work.is_done else None


def results_of(image: Image, name: str, values: Sequence[int], block_crcs: Mapping[int, bytes]) -> list[WriteResult]:
    """Return what DCP's metadata hold of a written file: places and CRC-32s, ``values`` by the numbers of extents.

    CRC-32s of blocks of memory that changed before it was written do not make that of the tensor: they are left out.
    """
    results = []
    for item in image.items:
        info = filesystem._StorageInfo(name, item.offset, item.nbytes)
        record, blocks = item.record, None
        if item.extent >= 0:
            record = record._replace(crc=values[item.extent])
        if item.extent in block_crcs:
            found = BlockChecksums(record.nbytes, block_bytes(record.nbytes), block_crcs[item.extent])
            blocks = found if found.are_of(record.nbytes, values[item.extent]) else None
        annotate(info, record, blocks)
        results.append(WriteResult(index=item.index, size_in_bytes=item.nbytes, storage_data=info))
    return results


class _Work:
    """Items whose blocks' CRC-32s are not known yet; ``found`` has those that are, by extent."""

    def __init__(self, image: Image, known: Mapping[str, bytes]) -> None:
        self._image = image
        self.found: dict[int, bytes] = {}
        self.control = Control()
        self._error: Exception | None = None
        left = []
        for item in image.items:
            if item.extent < 0 or item.record.dtype is None or item.record.nbytes <= LEAST:
                continue
            extent = image.layout.extents[item.extent]
            if extent.name in known:
                self.found[item.extent] = known[extent.name]
            elif extent.device == "cpu":
                left.append(item)
        self.is_done = not left
        self._left: Iterator[PlacedItem] = iter(left)

    def run(self) -> None:
        """Compute until ``control`` is cancelled."""
        try:
            while not self.control.cancelled and self._next():
                pass
        except Exception as error:  # raised when the file is written
            self._error = error

    def finish(self) -> None:
        """Compute the rest, after :meth:`run` ended."""
        if self._error is not None:
            raise self._error
        while self._next():
            pass

    def _next(self) -> bool:
        item = next(self._left, None)
        if item is None:
            return False
        extent = self._image.layout.extents[item.extent]
        self.found[item.extent] = crc32_blocks(extent.address, extent.nbytes, block_bytes(extent.nbytes))
        return True
