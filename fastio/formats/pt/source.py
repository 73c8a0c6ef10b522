"""Returns the :class:`Source` of a ``.pt`` file: the storages to read, and the unpickling over them."""

from __future__ import annotations

from typing import Any

from fastio.formats.pt.reader import PICKLE, NeedsTorchError, Reader, open_archive, unpickle
from fastio.formats.pt.settings import torch_only_reason
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
    read_local_headers: bool = False,
) -> Source:
    """Return the storages of a torch file that its pickle names, and the unpickling over them.

    ``read_local_headers``: read the header in front of every record, instead of deriving offsets to be confirmed later.
    CorruptFileError if the file contradicts itself; NeedsTorchError, with the reason, if torch must read it.
    """
    archive = open_archive(path, fd, size, read_local_headers)
    reason = torch_only_reason(archive, verify)
    if reason:
        raise NeedsTorchError(reason, archive)
    pickled = archive.read(PICKLE, verify)
    regions = archive.storages_in(pickled)

    def build(storage_of: StorageOf) -> Any:
        return unpickle(Reader(archive, verify, storage_of, pickled), map_location, weights_only, arguments)

    def confirm(span: Span | None) -> Source | None:
        covered = span is not None and span.offset <= regions[0].begin
        if span is not None and covered and archive.directory.confirm(span.address, span.offset, span.nbytes):
            return None
        if open_archive(path, fd, size, read_local_headers=True).records == archive.records:
            return None
        return source(path, fd, size, map_location, weights_only, verify, arguments, read_local_headers=True)

    offsets_are_known = read_local_headers or not regions
    return Source("pt", regions, build, archive.has_storage_crcs, None if offsets_are_known else confirm)
