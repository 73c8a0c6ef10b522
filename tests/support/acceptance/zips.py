"""A zip writer in which every field can be wrong. Fields follow PKWARE's APPNOTE 6.3, section 4.3."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

FOLDER = "a"
STATE = {"w": torch.arange(6.0), "b": torch.ones(3, dtype=torch.bfloat16)}


@dataclass(frozen=True)
class Member:
    """One record. A field that is None gets its correct value."""

    name: bytes
    data: bytes = b""
    method: int = 0
    flags: int = 0
    time: int = 0
    crc: int | None = None
    compressed: int | None = None
    size: int | None = None
    disk: int = 0
    attributes: int = 0
    header: int | None = None
    extra: bytes = b""
    comment: bytes = b""
    local_name: bytes | None = None
    local_extra: bytes = b""
    local_signature: bytes = b"PK\3\4"
    before: bytes = b""
    behind: bytes = b""

    @property
    def packed(self) -> bytes:
        """The bytes in the file, compressed by method 8."""
        if self.method != 8:
            return self.data
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(self.data) + deflate.flush()


@dataclass(frozen=True)
class End:
    """The end records. A field that is None gets its correct value. ``zip64`` adds the zip64 records."""

    disk: int = 0
    directory_disk: int = 0
    count_here: int | None = None
    count: int | None = None
    nbytes: int | None = None
    offset: int | None = None
    comment: bytes = b""
    said_comment: int | None = None
    zip64: bool = False
    narrow: bool = True  # with zip64, whether the 32-bit numbers are correct too
    signature64: bytes = b"PK\6\6"
    locator: int | None = None
    disks: int = 1
    behind_directory: bytes = b""
    behind: bytes = b""


def build(members: Sequence[Member], end: End = End(), prefix: bytes = b"") -> bytes:
    """The bytes of the zip file."""
    out = bytearray(prefix)
    entries = bytearray()
    for member in members:
        out += member.before
        place = len(out) if member.header is None else member.header
        crc = zlib.crc32(member.data) if member.crc is None else member.crc
        packed = member.packed
        compressed = len(packed) if member.compressed is None else member.compressed
        size = len(member.data) if member.size is None else member.size
        local = member.name if member.local_name is None else member.local_name
        common = struct.pack("<HHHHIII", member.flags, member.method, member.time, 0, crc, compressed, size)
        out += member.local_signature + struct.pack("<H", 20) + common
        out += struct.pack("<HH", len(local), len(member.local_extra)) + local + member.local_extra
        out += packed + member.behind
        entries += b"PK\1\2" + struct.pack("<HH", 20, 20) + common
        entries += struct.pack("<HHH", len(member.name), len(member.extra), len(member.comment))
        entries += struct.pack("<HHII", member.disk, 0, member.attributes, place)
        entries += member.name + member.extra + member.comment
    offset = len(out) if end.offset is None else end.offset
    nbytes = len(entries) if end.nbytes is None else end.nbytes
    count = len(members) if end.count is None else end.count
    here = count if end.count_here is None else end.count_here
    out += entries + end.behind_directory
    if end.zip64:
        place = len(out) if end.locator is None else end.locator
        out += end.signature64 + struct.pack(
            "<QHHIIQQQQ", 44, 45, 45, end.disk, end.directory_disk, here, count, nbytes, offset
        )
        out += b"PK\6\7" + struct.pack("<IQI", 0, place, end.disks)
    if not end.narrow:
        here = count = 0xFFFF
        nbytes = offset = 0xFFFFFFFF
    said = len(end.comment) if end.said_comment is None else end.said_comment
    out += b"PK\5\6" + struct.pack("<HHHHIIH", end.disk, end.directory_disk, here, count, nbytes, offset, said)
    return bytes(out + end.comment + end.behind)


def of_torch(folder: str = FOLDER, obj: Any = STATE) -> list[Member]:
    """The records of a file by torch.save, in its order."""
    stream = io.BytesIO()
    torch.save(obj, stream)
    with zipfile.ZipFile(stream) as archive:
        return [
            Member(f"{folder}/{name.partition('/')[2]}".encode(), archive.read(name)) for name in archive.namelist()
        ]


def changed(part: str, folder: str = FOLDER, **fields: Any) -> list[Member]:
    """torch's records, with ``fields`` changed in the record ``part`` of the folder."""
    name = f"{folder}/{part}".encode()
    found = [replace(member, **fields) if member.name == name else member for member in of_torch(folder)]
    assert found != of_torch(folder)
    return found


def every(change: Callable[[Member], Member]) -> list[Member]:
    """torch's records, each changed by ``change``."""
    return [change(member) for member in of_torch()]


def without(*parts: str) -> list[Member]:
    """torch's records without ``parts``."""
    names = {f"{FOLDER}/{part}".encode() for part in parts}
    return [member for member in of_torch() if member.name not in names]
