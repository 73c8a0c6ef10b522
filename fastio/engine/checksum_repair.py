"""Checksum repair after a write by a tool that computes no checksums on the way.

If another thread changes the memory during the save, the file may hold other bytes than those whose CRC-32 was
computed. So the file is read back, a block at a time, and a CRC that does not match its bytes is replaced. A note in
the result says so.
"""

from __future__ import annotations

import struct
import zipfile
from typing import NamedTuple

from fastio._native import crc32
from fastio.files.full_write import write_all
from fastio.formats.layout import Layout
from fastio.formats.pt.reader import NeedsTorchError, open_archive
from fastio.formats.small_reads import blocks_at, read_at

# PKWARE's APPNOTE 6.3, sections 4.3.9 (a descriptor follows the data) and 4.3.12 (entries of the central directory).
_DESCRIBED = 1 << 3
_CRC_IN_DESCRIPTOR, _CRC_IN_ENTRY, _LENGTHS_IN_ENTRY, _ENTRY_BYTES = 4, 16, 28, 46


class _Entry(NamedTuple):
    """The offset of an entry in the central directory, and whether a data descriptor repeats its CRC."""

    offset: int
    described: bool


def reseal(layout: Layout, values: list[int], path: str, fd: int) -> tuple[str, ...]:
    """Correct the CRCs of the extents in the file that a layout was written to, and in ``values``.

    Returns notes. TransferError if the system refuses.
    """
    changed = set()
    for index, extent in enumerate(layout.extents):
        value = _in_file(path, fd, extent.offset, extent.nbytes) if extent.checksum else 0
        if value != values[index]:
            changed.add(index)
            values[index] = value
    for offset, index in layout.patches:
        if index in changed:
            _put(path, fd, offset, values[index])
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
    values = {r.name: _in_file(path, fd, r.offset, r.nbytes) for r in archive.records.values()}
    changed = [record for record in archive.records.values() if record.crc != values[record.name]]
    entries = _entries(path, fd) if changed else {}
    for record in changed:
        entry = entries[record.name]
        _put(path, fd, entry.offset + _CRC_IN_ENTRY, values[record.name])
        if entry.described:
            _put(path, fd, record.offset + record.nbytes + _CRC_IN_DESCRIPTOR, values[record.name])
    return _notes(len(changed))


def _notes(changed: int) -> tuple[str, ...]:
    if not changed:
        return ()
    which = "one checksum is" if changed == 1 else f"{changed} checksums are"
    return (f"{which} of what the file has: the memory changed while it was written",)


def _in_file(path: str, fd: int, offset: int, nbytes: int) -> int:
    value = 0
    for block in blocks_at(path, fd, offset, nbytes):
        value = crc32(block, value)
    return value


def _entries(path: str, fd: int) -> dict[str, _Entry]:
    """The entries of the central directory, by the records' names without the archive's folder."""
    entries = {}
    with open(fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as archive:
        at = archive.start_dir
        for info in archive.infolist():
            entries[info.filename.partition("/")[2]] = _Entry(at, bool(info.flag_bits & _DESCRIBED))
            at += _ENTRY_BYTES + sum(struct.unpack("<3H", read_at(path, fd, at + _LENGTHS_IN_ENTRY, 6)))
    return entries


def _put(path: str, fd: int, offset: int, value: int) -> None:
    write_all(path, fd, memoryview(value.to_bytes(4, "little")), offset)
