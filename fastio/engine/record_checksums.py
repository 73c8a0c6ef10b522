"""CRC-32s of records of a file, and other digests of them, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastio._native import Mapping, crc32_combine
from fastio.errors import RefusedError
from fastio.formats.pt.reader import Archive, Record, crc_mismatch
from fastio.formats.pt.zip_members import verify_members
from fastio.memory.raw_memory import view
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, Span, TransportResult, is_resident

_WINDOW = 32 << 20


def record_checksums(
    path: str, fd: int, records: Sequence[Record], size: int, notes: dict[str, None], hashers: Sequence[Any] = ()
) -> list[int]:
    """The CRC-32 of each record's bytes (records sorted by offset), read through one window of memory.

    ``hashers``, one for each record if any, are given the same bytes.
    """
    values = [0] * len(records)
    done = [0] * len(records)
    if not records:
        return values
    with translate_native_errors(path):
        window = Mapping(min(_WINDOW, size + 4096))
        resident = is_resident(fd, size)
    first = 0
    end = max(record.offset + record.nbytes for record in records)
    for begin in range(records[0].offset // 4096 * 4096, end, _WINDOW):
        stop = min(begin + _WINDOW, end)
        while records[first].offset + records[first].nbytes <= begin:
            first += 1
        inside = []
        for index in range(first, len(records)):
            if records[index].offset >= stop:
                break
            inside.append(index)
        extents = []
        for index in inside:
            at = max(records[index].offset, begin)
            nbytes = min(records[index].offset + records[index].nbytes, stop) - at
            extents.append(Extent(at, nbytes, window.address + at - begin, True, "cpu", window, records[index].name))
        span = Span(begin, stop - begin, window.address)
        moved = _read(ReadRequest(path, fd, size, extents, span, resident), notes)
        for index, extent, value in zip(inside, extents, moved.checksums or (), strict=True):
            values[index] = crc32_combine(values[index], value, extent.nbytes) if done[index] else value
            done[index] += extent.nbytes
            if hashers:
                hashers[index].update(view(extent.address, extent.nbytes))
    return values


def _read(request: ReadRequest, notes: dict[str, None]) -> TransportResult:
    """Read, bypassing the page cache for a file that is not in it: a check must not evict other files."""
    uring = registry.find("uring").transport
    if not request.resident and uring is not None:
        try:
            return uring.read(request)
        except RefusedError as refusal:
            notes[f"verifying, uring: {refusal}"] = None
    return registry.get("posix").read(request)


def checksum(path: str, fd: int, size: int) -> int:
    """The CRC-32 of all ``size`` bytes of an open file. CorruptFileError if it is shorter."""
    return record_checksums(path, fd, [Record("", 0, size, 0)], size, {})[0] if size else 0


def verify_archive(archive: Archive, size: int) -> tuple[int, tuple[str, ...]]:
    """Check all records of a ``.pt`` file, or all but the storages where these carry no CRC.

    Gives the number of bytes, and what was read another way than wished.

    CorruptFileError names the record that is damaged.
    """
    if archive.has_compressed_records:
        return verify_members(archive.path, archive.fd, archive.directory), ()
    unsealed = set() if archive.has_storage_crcs else set(archive.storages)
    records = [record for record in archive.records.values() if record not in unsealed]
    notes = verify_records(archive, records, size)
    return sum(record.nbytes for record in records), notes


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
