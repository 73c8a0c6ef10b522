"""Compares the tensors of a ``.safetensors`` file with the checksums that are stored for them, in bounded memory."""

from __future__ import annotations

import hashlib

from fastio.engine.record_checksums import record_checksums
from fastio.formats.pt.reader import Record
from fastio.formats.safetensors import tensor_table
from fastio.formats.safetensors.format import checksums_of
from fastio.formats.safetensors.tensor_checksums import SHA256, TensorChecksums
from fastio.formats.safetensors.tensor_table import TensorTable


def verified(path: str, fd: int, size: int) -> tuple[int, int, bool, bool]:
    """Check an open file. ChecksumError names the tensor that is damaged.

    Returns the number of tensors, the bytes that were compared, and whether that was with CRC-32s, with SHA-256s.
    """
    table = tensor_table.read(path, fd, size)
    known = checksums_of(path, fd, size, table)
    if known is None:
        return len(table.entries), 0, False, False
    hashes = known.sha256 is not None
    compare(path, table, known, digests(path, fd, size, table, hashes))
    return len(table.entries), table.nbytes, True, hashes


def compare(path: str, table: TensorTable, known: TensorChecksums, found: TensorChecksums) -> None:
    """Compare the checksums of what is in a file with those that are known of it. ChecksumError names the tensor."""
    for name, crc in found.crc32.items():
        if crc != known.crc32[name]:
            raise known.mismatch(path, name, table.entries[name])
        if known.sha256 is not None and found.sha256 is not None and found.sha256[name] != known.sha256[name]:
            raise known.mismatch(path, name, table.entries[name], SHA256)


def digests(path: str, fd: int, size: int, table: TensorTable, hashes: bool) -> TensorChecksums:
    """The checksums of the tensors in an open file, with ``hashes`` also their SHA-256s."""
    records = [Record(name, entry.offset, entry.nbytes, 0) for name, entry in table.entries.items() if entry.nbytes]
    records.sort(key=lambda record: record.offset)
    hashers = {name: hashlib.sha256() for name in table.entries} if hashes else {}
    own = [hashers[record.name] for record in records] if hashes else []
    values = record_checksums(path, fd, records, size, {}, own)
    crcs = dict.fromkeys(table.entries, 0) | {record.name: crc for record, crc in zip(records, values, strict=True)}
    return TensorChecksums(crcs, {n: hasher.hexdigest() for n, hasher in hashers.items()} if hashes else None)
