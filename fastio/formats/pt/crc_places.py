"""Where a ``.pt`` file has the CRC-32s of its records."""

from __future__ import annotations

import struct
import zipfile

from fastio.formats.pt.reader import Archive
from fastio.formats.small_reads import read_at

# PKWARE's APPNOTE 6.3, sections 4.3.9 (a descriptor follows the data) and 4.3.12 (entries of the central directory).
_DESCRIBED = 1 << 3
_CRC_IN_DESCRIPTOR, _CRC_IN_ENTRY, _LENGTHS_IN_ENTRY, _ENTRY_BYTES = 4, 16, 28, 46


def crc_places(archive: Archive) -> dict[str, list[int]]:
    """The offsets of each record's CRC-32: in the central directory, and behind its bytes if it is repeated there."""
    places = {}
    with open(archive.fd, "rb", closefd=False) as file, zipfile.ZipFile(file) as members:
        entry = members.start_dir
        for info in members.infolist():
            name = info.filename.partition("/")[2]
            places[name] = [entry + _CRC_IN_ENTRY]
            if info.flag_bits & _DESCRIBED:
                record = archive.records[name]
                places[name].append(record.offset + record.nbytes + _CRC_IN_DESCRIPTOR)
            entry += _ENTRY_BYTES + sum(
                struct.unpack("<3H", read_at(archive.path, archive.fd, entry + _LENGTHS_IN_ENTRY, 6))
            )
    return places
