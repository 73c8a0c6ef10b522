"""The limit of a load: what the disk reads into resident memory past the page cache, without a checksum."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from fastio._native import Descriptor
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, Span
from fastio_bench.machine import disk_limit


class PlainRead:
    """Reads whole files, one after the other, each into the same memory, which is resident before it reads."""

    way = "direct reads of whole files, each rank its own"

    def __init__(self, paths: Sequence[str]) -> None:
        self._sizes = {path: os.path.getsize(path) for path in paths}
        self._memory = disk_limit.resident(max(self._sizes.values()))

    def run(self) -> str:
        """Read all. OSError, or an error of fastio, if the disk cannot be read past the page cache."""
        ring, address = registry.get("uring"), self._memory.data_ptr()
        with ExitStack() as stack:
            for path, size in self._sizes.items():
                fd = stack.enter_context(Descriptor(path, os.O_RDONLY))
                extent = Extent(0, size, address, checksum=False, owner=self._memory, name="limit")
                ring.read(ReadRequest(path, fd, size, (extent,), Span(0, size, address)))
        return self.way
