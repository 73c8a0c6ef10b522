"""Checks the CRCs of an archive that torch reads instead of fastio, such as one with compressed records.

torch does not check CRCs, and for a record that cannot be inflated it returns memory that it never filled, without an
error. So every record is inflated here first, in chunks.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from fastio._native import ZipDirectory, crc32
from fastio.errors import CorruptFileError
from fastio.formats.small_reads import read_at
from fastio.memory.load_buffers import Region
from fastio.sizes import exact_size

_CHUNK = 1 << 20
_STORED, _DEFLATED = 0, 8  # PKWARE's APPNOTE 6.3, section 4.4.5; torch reads no other method


def verify_members(path: str, fd: int, directory: ZipDirectory) -> int:
    """Check every record against its CRC-32 and return the number of their bytes, inflated.

    ``directory`` was read with ``read_local_headers``. CorruptFileError names the record that is damaged, or that
    cannot be checked because it is encrypted or compressed by a method that torch does not read. TransferError if a
    read fails.
    """
    total = 0
    for record, (method, encrypted, size) in zip(directory.records(Region), directory.methods(), strict=True):
        if encrypted:
            raise CorruptFileError(path, record.name, "is encrypted, which torch does not read; decrypt the file")
        if method not in (_STORED, _DEFLATED):
            raise CorruptFileError(path, record.name, f"is compressed by method {method}, not torch's")
        problem = _problem(path, fd, record, method == _DEFLATED, size)
        if problem:
            raise CorruptFileError(
                path,
                record.name,
                f"cannot be read as its directory says ({problem}): the file was damaged after it was written; restore "
                "it from a copy (verify=False loads it as it is)",
            )
        total += size
    return total


def _problem(path: str, fd: int, record: Region, deflated: bool, size: int) -> str:
    """Return why a record's bytes do not match its size or CRC; empty if they do."""
    crc = found = 0
    try:
        for data in _inflated(path, fd, record) if deflated else _stored(path, fd, record):
            crc = crc32(data, crc)
            found += len(data)
            if found > size:
                return f"it has more than {exact_size(size)}"
    except (zlib.error, EOFError) as error:
        return str(error)
    if found != size:
        return f"it has {exact_size(found)}, not {exact_size(size)}"
    return "" if crc == record.crc else f"its CRC-32 is {crc:08x}, not {record.crc:08x}"


def _stored(path: str, fd: int, record: Region) -> Iterator[bytes]:
    end = record.offset + record.nbytes
    for offset in range(record.offset, end, _CHUNK):
        yield read_at(path, fd, offset, min(_CHUNK, end - offset), record.name)


def _inflated(path: str, fd: int, record: Region) -> Iterator[bytes]:
    """Yield inflated chunks of at most 1 MiB. zlib.error or EOFError if the data cannot be inflated."""
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    for chunk in _stored(path, fd, record):
        while chunk and not inflater.eof:
            yield inflater.decompress(chunk, _CHUNK)
            chunk = inflater.unconsumed_tail
    if record.nbytes and not inflater.eof:
        raise EOFError("the compressed data ends too soon")
