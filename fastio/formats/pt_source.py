"""``.pt``, what a load needs to know before it starts."""

from __future__ import annotations

from typing import Any

import torch

from fastio.formats.pt_load import NotPlainError, Reader, Record, foreign_byte_order, open_archive, unpickle
from fastio.formats.source import Source, StorageOf
from fastio.landing import Region
from fastio.transport import Span


def source(
    path: str, fd: int, size: int, map_location: Any, weights_only: bool, verify: bool, careful: bool, arguments: dict[str, Any]
) -> Source:
    """The storages of a torch file, and torch's unpickling over them.

    CorruptFileError where the file contradicts itself; NotPlainError where torch must read it, with the reason.
    """
    archive = open_archive(path, fd, size, careful)
    if foreign_byte_order(archive, verify):
        raise NotPlainError("it was written on a machine of the other byte order")
    regions = [Region(r.name, r.offset, r.nbytes, r.crc if archive.checksummed else None) for r in archive.storages]
    by_name = {region.name: region for region in regions}

    def build(storage_of: StorageOf) -> Any:
        def storage(record: Record) -> torch.UntypedStorage:
            region = by_name.get(record.name)
            return storage_of(region) if region is not None else torch.UntypedStorage(0)

        return unpickle(Reader(archive, verify, storage), map_location, weights_only, arguments)

    def confirm(span: Span) -> bool:
        return archive.directory.confirm(span.address, span.offset, span.nbytes)

    return Source("pt", regions, build, archive.checksummed, None if careful else confirm)

