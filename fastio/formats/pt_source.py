"""``.pt``, what a load needs to know before it starts."""

from __future__ import annotations

from typing import Any

from fastio.formats.pt_load import NotPlainError, Reader, foreign_byte_order, open_archive, unpickle
from fastio.formats.source import Source, StorageOf, Wait
from fastio.transport import Span


def source(
    path: str,
    fd: int,
    size: int,
    map_location: Any,
    weights_only: bool,
    verify: bool,
    careful: bool,
    arguments: dict[str, Any],
) -> Source:
    """The storages of a torch file, and torch's unpickling over them.

    CorruptFileError where the file contradicts itself; NotPlainError where torch must read it, with the reason.
    """
    archive = open_archive(path, fd, size, careful)
    if foreign_byte_order(archive, verify):
        raise NotPlainError("it was written on a machine of the other byte order")
    regions = archive.storages

    def build(storage_of: StorageOf, wait: Wait) -> Any:
        return unpickle(Reader(archive, verify, storage_of, wait), map_location, weights_only, arguments)

    def confirm(span: Span) -> bool:
        # A transport that does not fill the gaps leaves no headers in memory: then they are read from the file.
        if archive.directory.confirm(span.address, span.offset, span.nbytes):
            return True
        return open_archive(path, fd, size, careful=True).records == archive.records

    return Source("pt", regions, build, archive.sealed, None if careful else confirm)
