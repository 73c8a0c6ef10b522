"""Returns the :class:`Source` of a ``.pt`` file: the storages to read, and the unpickling over them."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from fastio.formats.key_selection import pick
from fastio.formats.pt.extra_records import torch_only_reason
from fastio.formats.pt.placeholders import Placeholders
from fastio.formats.pt.reader import PICKLE, NeedsTorchError, Reader, Record, crc_mismatch, open_archive, unpickle
from fastio.formats.pt.wanted_storages import wanted_storages
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
    keys: tuple[str, ...] | None = None,
    read_local_headers: bool = False,
) -> Source:
    """Return the storages of a torch file that its pickle names, and the unpickling over them.

    ``keys``: the storages that these entries need, and the dict without the other entries; None for all.
    ``read_local_headers``: read the header in front of every record, instead of deriving offsets to be confirmed later.
    CorruptFileError if the file contradicts itself; NeedsTorchError, with the reason, if torch must read it.
    """
    archive = open_archive(path, fd, size, read_local_headers)
    reason = torch_only_reason(archive, verify)
    if reason:
        raise NeedsTorchError(reason, archive)
    pickled = archive.read(PICKLE, verify)
    mentioned = archive.storages_in(pickled)
    wanted = None if keys is None else wanted_storages(path, PICKLE, pickled, keys)
    regions = mentioned if wanted is None else [record for record in mentioned if record.name in wanted]

    def build(storage_of: StorageOf) -> Any:
        if keys is None:
            return unpickle(Reader(archive, verify, storage_of, pickled), map_location, weights_only, arguments)
        rest = Placeholders(path, [r for r in mentioned if wanted is not None and r.name not in wanted and r.nbytes])

        def any_storage(record: Record) -> torch.UntypedStorage:
            return rest.storage(record) if record in rest else storage_of(record)

        reader = Reader(archive, verify, any_storage, pickled, rest)
        return pick(path, unpickle(reader, map_location, weights_only, arguments), keys)

    def confirm(span: Span | None) -> Source | None:
        covered = span is not None and span.offset <= regions[0].begin
        if span is not None and covered and archive.directory.confirm(span.address, span.offset, span.nbytes):
            return None
        if keys is not None:  # the other headers are not read
            confirmed = archive.confirms(regions)
        else:
            confirmed = open_archive(path, fd, size, read_local_headers=True).records == archive.records
        if confirmed:
            return None
        return source(path, fd, size, map_location, weights_only, verify, arguments, keys, read_local_headers=True)

    offsets_are_known = read_local_headers or not regions
    damaged = partial(crc_mismatch, path) if archive.has_storage_crcs else None
    return Source("pt", regions, build, None if offsets_are_known else confirm, damaged=damaged)
