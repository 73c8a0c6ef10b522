"""CRC-32s of records of a file, and other digests of them, in bounded memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fastio._native import crc32
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.tool_selection import plan_transfer
from fastio.formats.detect import PT
from fastio.formats.pt.reader import Archive, Record, crc_mismatch
from fastio.formats.pt.zip_members import verify_members
from fastio.formats.small_reads import blocks_at
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.extent_rows import total_nbytes
from fastio.transports.transport import LOAD, Extent, ReadRequest, is_resident

_NOWHERE = 0  # the address of extents whose bytes are not kept: the threads that read them check them


def record_checksums(
    path: str, fd: int, records: Sequence[Record], size: int, notes: dict[str, None], hashers: Sequence[Any] = ()
) -> Sequence[int]:
    """The CRC-32 of each record's bytes (records sorted by offset), read through a few small blocks of memory.

    ``hashers``, one for each record if any, are given the same bytes.
    """
    if not records:
        return []
    with translate_native_errors(path):
        resident = is_resident(fd, size)
    if not hashers:
        extents = [Extent(record.offset, record.nbytes, _NOWHERE, True, name=record.name) for record in records]
        return _read(ReadRequest(path, fd, size, extents, None, resident), notes)
    values = []
    for record, hasher in zip(records, hashers, strict=True):
        value = 0
        for block in blocks_at(path, fd, record.offset, record.nbytes):
            value = crc32(block, value)
            hasher.update(block)
        values.append(value)
    if not resident:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return values


def _read(request: ReadRequest, notes: dict[str, None]) -> Sequence[int]:
    """Read, bypassing the page cache for a file that is not in it: a check must not evict other files."""
    extents = request.extents
    plan = plan_transfer(
        LOAD, request.path, PT, {torch.device("cpu")}, total_nbytes(extents), len(extents), "r", "extents",
        resident=bool(request.resident),
    )  # fmt: skip
    tools = ("posix",) if request.resident or registry.find("uring").transport is None else ("uring", "posix")

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        moved = execution.move(request)
        notes.update(dict.fromkeys(f"verifying, {failure}" for failure in execution.failures))
        return Outcome(moved, moved.checksums or ())

    return execute(plan, work, time.perf_counter(), request.control, tools, asks=False)[1]


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
