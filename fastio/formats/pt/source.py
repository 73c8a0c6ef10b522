"""``.pt``, what a load needs to know before it starts."""

from __future__ import annotations

from typing import Any

from fastio.formats.pt.reader import PICKLE, NotPlainError, Reader, open_archive, unpickle
from fastio.formats.pt.settings import why_torch_decides
from fastio.formats.source import Source, StorageOf
from fastio.transports.transport import Span


def source(
    path: str,
    fd: int,
    size: int,
    map_location: Any,
    weights_only: bool,
    verify: bool,
    arguments: dict[str, Any],
    careful: bool = False,
) -> Source:
    """The storages of a torch file that its pickle names, and the unpickling over them.

    ``careful``: read the header in front of every record, instead of deriving offsets that must be confirmed.
    CorruptFileError where the file contradicts itself; NotPlainError where torch must read it, with the reason.
    """
    archive = open_archive(path, fd, size, careful)
    why = why_torch_decides(archive, verify)
    if why:
        raise NotPlainError(why, archive)
    pickled = archive.read(PICKLE, verify)
    regions = archive.storages_in(pickled)

    def build(storage_of: StorageOf) -> Any:
        return unpickle(Reader(archive, verify, storage_of, pickled), map_location, weights_only, arguments)

    def confirm(span: Span | None) -> Source | None:
        covered = span is not None and span.offset <= regions[0].begin
        if span is not None and covered and archive.directory.confirm(span.address, span.offset, span.nbytes):
            return None
        if open_archive(path, fd, size, careful=True).records == archive.records:
            return None
        return source(path, fd, size, map_location, weights_only, verify, arguments, careful=True)

    return Source("pt", regions, build, archive.sealed, None if careful or not regions else confirm)
