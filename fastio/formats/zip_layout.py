"""A zip file as torch writes it, byte for byte: stored records, aligned by padding, CRCs after the data.

The layout follows torch's writer (``caffe2/serialize/inline_container.cc`` and its miniz): flags 0x808, a padding
field ``FB`` in each local header, a data descriptor of 16 bytes (24 with zip64), zip64 end records always.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import torch

from fastio.formats.layout import Layout, LayoutBuilder

_MAX32 = 0xFFFFFFFF
_UTF8, _DESCRIBED = 0x0800, 0x0008  # flags: names are UTF-8; a descriptor follows the data
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_DESCRIPTOR32 = struct.Struct("<IIII")
_DESCRIPTOR64 = struct.Struct("<IIQQ")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR = struct.Struct("<IIQI")
_END = struct.Struct("<IHHHHIIH")
_MADE_BY, _NEEDED = 0x031E, 45
_CRC_IN_DESCRIPTOR, _CRC_IN_CENTRAL = 4, 16


@dataclass(slots=True)
class _Record:
    name: bytes
    header: int
    nbytes: int
    crc: int
    storage: int | None  # the builder's number, where the CRC is not known yet

    @property
    def flags(self) -> int:
        """An empty record has no descriptor."""
        return _UTF8 | _DESCRIBED if self.nbytes else _UTF8


class ZipLayoutBuilder:
    """Lays out the records of a ``.pt`` file; :meth:`finish` gives the layout."""

    def __init__(self, archive: str, alignment: int) -> None:
        self._prefix = archive.encode() + b"/"
        self._alignment = alignment
        self._builder = LayoutBuilder()
        self._records: list[_Record] = []

    def add_bytes(self, name: str, data: bytes) -> None:
        """A small record whose bytes are known."""
        record = self._start(name, len(data))
        record.crc = zlib.crc32(data)
        self._builder.add_literal(data)
        self._finish(record)

    def add_storage(self, name: str, storage: torch.UntypedStorage, nbytes: int) -> None:
        """A record whose bytes are a storage's. Its CRC is put in by the transport."""
        record = self._start(name, nbytes)
        if nbytes:
            record.storage = self._builder.add_storage(storage, nbytes, name, checksum=True)
        self._finish(record)

    def _start(self, name: str, nbytes: int) -> _Record:
        record = _Record(self._prefix + name.encode(), self._builder.offset, nbytes, 0, None)
        extra = _zip64(record, local=True)
        start = record.header + _LOCAL.size + len(record.name) + len(extra) + 4
        padding = -start % self._alignment
        extra += b"FB" + struct.pack("<H", padding) + b"Z" * padding
        header = _LOCAL.pack(0x04034B50, 0, record.flags, 0, 0, 0, 0, 0, 0, len(record.name), len(extra))
        self._builder.add_literal(header + record.name + extra)
        return record

    def _finish(self, record: _Record) -> None:
        self._records.append(record)
        if record.nbytes == 0:
            return
        at = self._builder.offset
        wide = record.header >= _MAX32 or record.nbytes >= _MAX32
        descriptor = _DESCRIPTOR64 if wide else _DESCRIPTOR32
        self._builder.add_literal(descriptor.pack(0x08074B50, record.crc, record.nbytes, record.nbytes))
        if record.storage is not None:
            self._builder.add_patch(at + _CRC_IN_DESCRIPTOR, record.storage)

    def finish(self) -> Layout:
        """Append the central directory."""
        start = at = self._builder.offset
        entries = []
        for record in self._records:
            extra = _zip64(record, local=False)
            nbytes, header = min(record.nbytes, _MAX32), min(record.header, _MAX32)
            entry = _CENTRAL.pack(
                0x02014B50, 0, 0, record.flags, 0, 0, 0, record.crc, nbytes, nbytes, len(record.name), len(extra), 0, 0, 0, 0, header
            )  # fmt: skip
            if record.storage is not None:
                self._builder.add_patch(at + _CRC_IN_CENTRAL, record.storage)
            entry += record.name + extra
            entries.append(entry)
            at += len(entry)
        count, nbytes = len(entries), at - start
        entries.append(_END64.pack(0x06064B50, _END64.size - 12, _MADE_BY, _NEEDED, 0, 0, count, count, nbytes, start))
        entries.append(_LOCATOR.pack(0x07064B50, 0, at, 1))
        short = min(count, 0xFFFF)
        entries.append(_END.pack(0x06054B50, 0, 0, short, short, min(nbytes, _MAX32), min(start, _MAX32), 0))
        self._builder.add_literal(b"".join(entries))
        return self._builder.build()


def _zip64(record: _Record, local: bool) -> bytes:
    """The zip64 extra field, where a size or (in the directory, and as miniz does in the header) the offset needs it."""
    values = []
    if record.nbytes >= _MAX32:
        values += [record.nbytes, record.nbytes]
    if record.header >= _MAX32:
        values.append(record.header)
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values) if values else b""
