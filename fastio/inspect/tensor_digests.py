"""Compares the tensors of a ``.safetensors`` file with the checksums that are stored for them, in bounded memory."""

from __future__ import annotations

import hashlib
import os

from fastio._native import crc32
from fastio.engine.background_job import Progress
from fastio.engine.record_checksums import record_checksums
from fastio.formats.pt.reader import Record
from fastio.formats.safetensors import tensor_table
from fastio.formats.safetensors.format import checksums_of
from fastio.formats.safetensors.tensor_checksums import SHA256, TensorChecksums
from fastio.formats.safetensors.tensor_table import TensorTable
from fastio.formats.small_reads import blocks_at
from fastio.runtime.native_errors import tensors_named
from fastio.transports.transport import is_resident

_TOLD_EACH = 16 << 20  # bytes that are read between two reports of progress


def verified(path: str, fd: int, size: int, progress: Progress | None = None) -> tuple[int, int, bool, bool]:
    """Check an open file. ChecksumError names the tensor that is damaged.

    Returns the number of tensors, the bytes that were compared, and whether that was with CRC-32s, with SHA-256s.
    """
    table = tensor_table.read(path, fd, size)
    known = checksums_of(path, fd, size, table)
    if known is None:
        return len(table.entries), 0, False, False
    hashes = known.sha256 is not None
    with tensors_named():
        compare(path, table, known, digests(path, fd, size, table, hashes, progress))
    return len(table.entries), table.nbytes, True, hashes


def compare(path: str, table: TensorTable, known: TensorChecksums, found: TensorChecksums) -> None:
    """Compare the checksums of what is in a file with those that are known of it. ChecksumError names the tensor."""
    for name, crc in found.crc32.items():
        if crc != known.crc32[name]:
            raise known.mismatch(path, name, table.entries[name])
        if known.sha256 is not None and found.sha256 is not None and found.sha256[name] != known.sha256[name]:
            raise known.mismatch(path, name, table.entries[name], SHA256)


def digests(
    path: str, fd: int, size: int, table: TensorTable, hashes: bool, progress: Progress | None = None
) -> TensorChecksums:
    """The checksums of the tensors in an open file, with ``hashes`` also their SHA-256s."""
    records = [Record(name, entry.offset, entry.nbytes, 0) for name, entry in table.entries.items() if entry.nbytes]
    records.sort(key=lambda record: record.offset)
    crcs = dict.fromkeys(table.entries, 0)
    if not hashes:
        values = record_checksums(path, fd, records, size, {}, progress)
        return TensorChecksums(crcs | {record.name: crc for record, crc in zip(records, values, strict=True)}, None)
    resident = is_resident(path, fd, size)
    hashers = {name: hashlib.sha256() for name in table.entries}
    done = told = 0
    for record in records:
        for block in blocks_at(path, fd, record.offset, record.nbytes):
            crcs[record.name] = crc32(block, crcs[record.name])
            hashers[record.name].update(block)
            done += len(block)
            if progress is not None and (done - told >= _TOLD_EACH or done == table.nbytes):
                told = done
                progress(done, table.nbytes)
    if not resident:  # a check must not evict other files
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    return TensorChecksums(crcs, {name: hasher.hexdigest() for name, hasher in hashers.items()})
