"""CRC-32s of what a file holds, in bounded memory: compared with those in it, or put into it.

The latter after a write by a tool that computes no checksums on the way. If another thread changes the memory during
the save, the file may hold other bytes than those whose CRC-32 was computed. So the file is read back, and a CRC that
does not match its bytes is replaced. A note in the result says so.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from fastio._native import crc32
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.extent_reads import plan_read
from fastio.formats.layout import Layout
from fastio.formats.pt.crc_places import crc_places
from fastio.formats.pt.reader import Archive, NeedsTorchError, Record, crc_mismatch, open_archive
from fastio.formats.pt.zip_members import verify_members
from fastio.formats.small_reads import read_at
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, is_resident
from fastio.volumes import views
from fastio.volumes.views import write_all

_SMALL = 64 << 10  # bytes of a file that is read in less time than its read is planned
_NOWHERE = 0  # the address of extents whose bytes are not kept: the threads that read them check them


def record_checksums(
    path: str,
    fd: int,
    records: Sequence[Record | Extent],
    size: int,
    notes: dict[str, None],
    progress: Progress | None = None,
) -> Sequence[int]:
    """The CRC-32 of each record's bytes (sorted by offset, not empty), read through a few small blocks of memory.

    A file that is not in the page cache is read past it: a check must not evict other files. ``notes`` gets what was
    read another way than wished.
    """
    if size <= _SMALL:
        return [crc32(read_at(path, fd, record.offset, record.nbytes, record.name)) for record in records]
    if not records:
        return []
    extents = [Extent(record.offset, record.nbytes, _NOWHERE, True, name=record.name) for record in records]
    request = ReadRequest(path, fd, size, extents, None, is_resident(path, fd, size))
    plan = plan_read(request, "r")
    view = views.of(fd)
    if view is not None and view.device.kind:
        tools: tuple[str, ...] = (view.device.kind,)
    else:
        tools = ("posix",) if request.resident or registry.find("uring").transport is None else ("uring", "posix")

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        moved = execution.move(request)
        notes.update(dict.fromkeys(f"verifying, {failure}" for failure in execution.failures))
        return Outcome(moved, moved.checksums or ())

    def read() -> Sequence[int]:
        return execute(plan, work, time.perf_counter(), request.control, tools, asks=False)[1]

    if progress is None:
        return read()
    with under_way(read, request.control, sum(extent.nbytes for extent in extents)) as job:
        return job.wait(progress)


def checksum(path: str, fd: int, size: int) -> int:
    """The CRC-32 of all ``size`` bytes of an open file. CorruptFileError if it is shorter."""
    return record_checksums(path, fd, [Record("", 0, size, 0)], size, {})[0] if size else 0


def verify_archive(
    path: str, fd: int, size: int, progress: Progress | None = None
) -> tuple[Archive, int, tuple[str, ...]]:
    """Check all records of a ``.pt`` file, or all but the storages where these carry no CRC; none if no record does.

    Gives its directory, the number of bytes that were checked, and what was read another way than wished.
    CorruptFileError names the record that is damaged.
    """
    try:
        archive = open_archive(path, fd, size, read_local_headers=True)
    except NeedsTorchError as reason:
        archive = reason.archive
    if not archive.checksummed:
        return archive, 0, ()
    if archive.has_compressed_records:
        return archive, verify_members(path, fd, archive.directory), ()
    unsealed = set() if archive.has_storage_crcs else set(archive.storages)
    records = [record for record in archive.records.values() if record not in unsealed]
    notes = verify_records(archive, records, size, progress)
    return archive, sum(record.nbytes for record in records), notes


def verify_records(
    archive: Archive, records: Iterable[Record], size: int, progress: Progress | None = None
) -> tuple[str, ...]:
    """Check some records of a ``.pt`` file, which are not compressed; return what was read another way than wished.

    CorruptFileError names the record that is damaged.
    """
    in_order = sorted((record for record in records if record.nbytes), key=lambda record: record.offset)
    notes: dict[str, None] = {}
    values = record_checksums(archive.path, archive.fd, in_order, size, notes, progress)
    for record, value in zip(in_order, values, strict=True):
        if value != record.crc:
            raise crc_mismatch(archive.path, record)
    return tuple(notes)


def reseal(layout: Layout, values: list[int], path: str, fd: int) -> tuple[str, ...]:
    """Correct the CRCs of the extents in the file that a layout was written to, and in ``values``.

    Returns notes. TransferError if the system refuses.
    """
    indices = [index for index, extent in enumerate(layout.extents) if extent.checksum]
    found = record_checksums(path, fd, [layout.extents[index] for index in indices], layout.size, {})
    changed = {index: value for index, value in zip(indices, found, strict=True) if value != values[index]}
    for index, value in changed.items():
        values[index] = value
    for offset, index in layout.patches:
        if index in changed:
            _put(path, fd, offset, changed[index])
    return _notes(len(changed))


def reseal_archive(path: str, fd: int, size: int) -> tuple[str, ...]:
    """Correct the CRCs of all records of a ``.pt`` file that torch has just written. Returns notes.

    TransferError if the system refuses.
    """
    try:
        archive = open_archive(path, fd, size, read_local_headers=True)
    except NeedsTorchError:
        return ()  # torch.save did not write it
    if not archive.checksummed:
        return ()
    records = sorted((r for r in archive.records.values() if r.nbytes), key=lambda record: record.offset)
    found = record_checksums(path, fd, records, size, {})
    changed = [(record, value) for record, value in zip(records, found, strict=True) if value != record.crc]
    places = crc_places(archive) if changed else {}
    for record, value in changed:
        for place in places[record.name]:
            _put(path, fd, place, value)
    return _notes(len(changed))


def _notes(changed: int) -> tuple[str, ...]:
    if not changed:
        return ()
    which = "one checksum is" if changed == 1 else f"{changed} checksums are"
    return (f"{which} of what the file has: the memory changed while it was written",)


def _put(path: str, fd: int, offset: int, value: int) -> None:
    write_all(path, fd, memoryview(value.to_bytes(4, "little")), offset)
