"""CRC-32s of what a file holds, in bounded memory, and the check of a ``.pt`` file against its own."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.extent_reads import plan_read
from fastio.formats.pt.reader import Archive, NeedsTorchError, Record, crc_mismatch, open_archive
from fastio.formats.pt.zip_members import verify_members
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest

_NOWHERE = 0  # the address of extents whose bytes are not kept: the threads that read them check them


def record_checksums(
    path: str, fd: int, records: Sequence[Record | Extent], size: int, notes: dict[str, None]
) -> Sequence[int]:
    """The CRC-32 of each record's bytes (sorted by offset, not empty), read through a few small blocks of memory.

    A file that is not in the page cache is read past it: a check must not evict other files. ``notes`` gets what was
    read another way than wished.
    """
    if not records:
        return []
    extents = [Extent(record.offset, record.nbytes, _NOWHERE, True, name=record.name) for record in records]
    plan = plan_read(path, fd, size, extents, "r")
    request = ReadRequest(path, fd, size, extents, None, plan.resident)
    tools = ("posix",) if plan.resident or registry.find("uring").transport is None else ("uring", "posix")

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        moved = execution.move(request)
        notes.update(dict.fromkeys(f"verifying, {failure}" for failure in execution.failures))
        return Outcome(moved, moved.checksums or ())

    return execute(plan, work, time.perf_counter(), request.control, tools, asks=False)[1]


def checksum(path: str, fd: int, size: int) -> int:
    """The CRC-32 of all ``size`` bytes of an open file. CorruptFileError if it is shorter."""
    return record_checksums(path, fd, [Record("", 0, size, 0)], size, {})[0] if size else 0


def verify_archive(path: str, fd: int, size: int) -> tuple[Archive, int, tuple[str, ...]]:
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
    notes = verify_records(archive, records, size)
    return archive, sum(record.nbytes for record in records), notes


def verify_records(archive: Archive, records: Iterable[Record], size: int) -> tuple[str, ...]:
    """Check some records of a ``.pt`` file, which are not compressed; return what was read another way than wished.

    CorruptFileError names the record that is damaged.
    """
    in_order = sorted((record for record in records if record.nbytes), key=lambda record: record.offset)
    notes: dict[str, None] = {}
    values = record_checksums(archive.path, archive.fd, in_order, size, notes)
    for record, value in zip(in_order, values, strict=True):
        if value != record.crc:
            raise crc_mismatch(archive.path, record)
    return tuple(notes)
