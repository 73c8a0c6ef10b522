"""pt files with unusual directories, end records and local headers."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from acceptance.zips import End, Member, build, changed, every, of_torch

_FF = 0xFFFFFFFF
_ENCRYPTED, _DESCRIBED, _PATCH, _STRONG, _UTF8, _MASKED = 1, 8, 1 << 5, 1 << 6, 1 << 11, 1 << 13
_FOLDER_BIT = 0x10


def _ended(**fields: Any) -> bytes:
    return build(of_torch(), End(**fields))


def _wide(*values: int) -> bytes:
    """A zip64 field."""
    return struct.pack(f"<HH{len(values)}Q", 1, 8 * len(values), *values)


def _spare(**fields: Any) -> bytes:
    """A file with an unusual record that the pickle does not refer to."""
    return build([*of_torch(), Member(b"a/spare", b"spare", **fields)])


def _all(**fields: Any) -> bytes:
    return build(every(lambda member: replace(member, **fields)))


def _described(wide: bool) -> bytes:
    """A file with data descriptors of 16 or 24 bytes, as a program writes that cannot seek."""

    def describe(member: Member) -> Member:
        crc = zlib.crc32(member.data)
        size = len(member.data)
        behind = b"PK\7\10" + (struct.pack("<IQQ", crc, size, size) if wide else struct.pack("<III", crc, size, size))
        return replace(member, flags=_DESCRIBED, behind=behind)

    return build(every(describe))


def _said_wide(part: str, *, size: bool = False, compressed: bool = False, header: bool = False) -> bytes:
    """A file with a record whose numbers are in a zip64 field although they are small."""
    members = of_torch()
    at = next(index for index, member in enumerate(members) if member.name == b"a/" + part.encode())
    member = members[at]
    place = len(build(members[:at], End())) - 22 - sum(46 + len(one.name) for one in members[:at])
    values = [len(member.data)] * size + [len(member.data)] * compressed + [place] * header
    fields: dict[str, Any] = {"extra": _wide(*values)}
    fields |= {"size": _FF} if size else {}
    fields |= {"compressed": _FF} if compressed else {}
    fields |= {"header": _FF} if header else {}
    return build([*members[:at], replace(member, **fields), *members[at + 1 :]])


def _behind_directory() -> bytes:
    """A file with the directory before the records."""
    plain = build(of_torch())
    (nbytes, offset) = struct.unpack_from("<II", plain, len(plain) - 10)
    records, directory = plain[:offset], bytearray(plain[offset : offset + nbytes])
    at = 0
    while at < nbytes:
        (place,) = struct.unpack_from("<I", directory, at + 42)
        struct.pack_into("<I", directory, at + 42, place + 4 + nbytes)
        at += 46 + sum(struct.unpack_from("<HHH", directory, at + 28))
    end = bytearray(plain[-22:])
    struct.pack_into("<I", end, 16, 4)
    return b"PK\3\4" + bytes(directory) + records + bytes(end)


def _overlapping() -> bytes:
    """A file with two names for the same bytes."""
    members = of_torch()
    plain = build(members)
    return build(
        [*members, replace(members[4], name=b"a/data/9", header=plain.index(b"PK\3\4", plain.index(b"little")))]
    )


ROWS: dict[str, Callable[[], bytes]] = {
    "comment": lambda: _ended(comment=b"a comment"),
    "comment of 65535 bytes": lambda: _ended(comment=b"x" * 65535),
    "comment with an end's signature": lambda: _ended(comment=b"PK\5\6" + bytes(30)),
    "comment with a short end's signature": lambda: _ended(comment=b"xxxxPK\5\6xx"),
    "comment longer than said": lambda: _ended(comment=b"a comment", said_comment=3),
    "comment shorter than said": lambda: _ended(comment=b"a", said_comment=3),
    "comment that is missing": lambda: _ended(said_comment=9),
    "a byte behind the end": lambda: _ended(behind=b"\n"),
    "zeros behind the end": lambda: _ended(behind=bytes(4096)),
    "4074 bytes behind the end": lambda: _ended(behind=b"x" * 4074),
    "4075 bytes behind the end": lambda: _ended(behind=b"x" * 4075),
    "4075 bytes behind the end of a larger one": lambda: build(
        [*of_torch(), Member(b"a/spare", bytes(4093))], End(behind=b"x" * 4075)
    ),
    "8168 bytes behind the end of a larger one": lambda: build(
        [*of_torch(), Member(b"a/spare", bytes(4093))], End(behind=b"x" * 8168)
    ),
    "65534 bytes behind the end": lambda: _ended(behind=b"x" * 65534),
    "69562 bytes behind the end": lambda: _ended(behind=b"x" * 69562),
    "69563 bytes behind the end": lambda: _ended(behind=b"x" * 69563),
    "100000 bytes behind the end": lambda: _ended(behind=b"x" * 100_000),
    "another archive behind": lambda: build(of_torch(obj=[1])) + build(of_torch()),
    "a record in front that no entry has": lambda: build(of_torch(), prefix=build([Member(b"b/x", b"x")])),
    "bytes in front": lambda: build(of_torch(), prefix=b"#!/bin/sh\n"),
    "bytes in front, offsets as without": lambda: b"#!/bin/sh\n" + build(of_torch()),
    "a header in front, offsets as without": lambda: b"PK\3\4" + build(of_torch()),
    "too few counted": lambda: _ended(count=3),
    "too many counted": lambda: _ended(count=9),
    "none counted": lambda: _ended(count=0),
    "two counts": lambda: _ended(count_here=3),
    "directory said too long": lambda: _ended(nbytes=9999),
    "directory said a byte too long": lambda: build(of_torch(), End(nbytes=len(_directory()) + 1)),
    "directory said a byte too short": lambda: build(of_torch(), End(nbytes=len(_directory()) - 1)),
    "bytes between directory and end": lambda: _ended(behind_directory=b"x" * 7),
    "directory said too far": lambda: _ended(offset=10**6),
    "directory said elsewhere": lambda: _ended(offset=5),
    "disk 1": lambda: _ended(disk=1),
    "disk 1 of the directory": lambda: _ended(directory_disk=1),
    "disk 1 and 1": lambda: _ended(disk=1, directory_disk=1),
    "disk 2 and 2": lambda: _ended(disk=2, directory_disk=2),
    "entries on disk 1": lambda: _all(disk=1),
    "entries on disk 2": lambda: _all(disk=2),
    "entries on disk 65535": lambda: _all(disk=0xFFFF),
    "spare record on disk 3": lambda: _spare(disk=3),
    "all on disk 1": lambda: build(every(lambda m: replace(m, disk=1)), End(disk=1, directory_disk=1)),
    "zip64 end": lambda: _ended(zip64=True),
    "zip64 end alone": lambda: _ended(zip64=True, narrow=False),
    "zip64 end of no signature": lambda: _ended(zip64=True, signature64=b"PK\6\0"),
    "zip64 end of no signature, alone": lambda: _ended(zip64=True, narrow=False, signature64=b"PK\6\0"),
    "zip64 end elsewhere": lambda: _ended(zip64=True, locator=7),
    "zip64 end outside": lambda: _ended(zip64=True, locator=1 << 40),
    "zip64 of two disks": lambda: _ended(zip64=True, disks=2),
    "zip64 of no disk": lambda: _ended(zip64=True, disks=0),
    "zip64 with a comment": lambda: _ended(zip64=True, comment=b"a comment"),
    "zip64 sizes": lambda: _said_wide("data/0", size=True, compressed=True),
    "zip64 size alone": lambda: _said_wide("data/0", size=True),
    "zip64 offset": lambda: _said_wide("data/0", header=True),
    "zip64 all": lambda: _said_wide("data/0", size=True, compressed=True, header=True),
    "zip64 field that is not needed": lambda: build(changed("data/0", extra=_wide(1, 2, 3))),
    "zip64 field missing": lambda: build(changed("data/0", size=_FF, compressed=_FF)),
    "zip64 field missing in a spare record": lambda: _spare(size=_FF, compressed=_FF),
    "zip64 field too short": lambda: build(changed("data/0", size=_FF, compressed=_FF, extra=_wide(24))),
    "zip64 field of lies": lambda: build(changed("data/0", size=_FF, compressed=_FF, extra=_wide(1 << 50, 1 << 50))),
    "extra field cut short": lambda: build(changed("data/0", extra=b"FB\x09\x00xx")),
    "extra field of odd length": lambda: build(changed("data/0", extra=b"F")),
    "entries with comments": lambda: _all(comment=b"a comment"),
    "entries with times": lambda: _all(time=0x6000),
    "flag of UTF-8": lambda: _all(flags=_UTF8),
    "storage encrypted": lambda: build(changed("data/0", flags=_ENCRYPTED)),
    "storage strongly encrypted": lambda: build(changed("data/0", flags=_STRONG)),
    "storage a patch": lambda: build(changed("data/0", flags=_PATCH)),
    "storage masked": lambda: build(changed("data/0", flags=_MASKED)),
    "pickle encrypted": lambda: build(changed("data.pkl", flags=_ENCRYPTED)),
    "serialization id encrypted": lambda: build(changed(".data/serialization_id", flags=_ENCRYPTED)),
    "spare record encrypted": lambda: _spare(flags=_ENCRYPTED),
    "spare record masked": lambda: _spare(flags=_MASKED),
    "other flags": lambda: _all(flags=0b110),
    "all deflated": lambda: _all(method=8),
    "storage deflated": lambda: build(changed("data/0", method=8)),
    "storage deflated, of another size": lambda: build(changed("data/0", method=8, size=28)),
    "storage said to be deflated": lambda: build(changed("data/0", data=b"\xff" * 24, method=9)),
    "storage by method 12": lambda: build(changed("data/0", method=12)),
    "spare record by method 12": lambda: _spare(method=12),
    "spare record by method 99": lambda: _spare(method=99),
    "stored with two sizes": lambda: build(changed("data/0", compressed=20)),
    "stored with two sizes and a time": lambda: build(changed("data/0", compressed=20, time=5)),
    "stored with no compressed size": lambda: build(changed("data/0", compressed=0, time=5)),
    "spare record with two sizes and a time": lambda: _spare(compressed=3, time=5),
    "spare record longer than the file": lambda: _spare(size=1 << 20, compressed=1 << 20),
    "spare record outside": lambda: _spare(header=1 << 30),
    "storage marked a folder": lambda: build(changed("data/0", attributes=_FOLDER_BIT)),
    "pickle marked a folder": lambda: build(changed("data.pkl", attributes=_FOLDER_BIT)),
    "spare record marked a folder": lambda: _spare(attributes=_FOLDER_BIT),
    "wrong CRC of a storage": lambda: build(changed("data/0", crc=1)),
    "wrong CRC of a spare record": lambda: _spare(crc=1),
    "no CRCs": lambda: _all(crc=0),
    "directory in front": _behind_directory,
    "two names for one place": _overlapping,
    "too few counted, of the last": lambda: _ended(count=7),
    "spare record without a header": lambda: _spare(local_signature=b"PK\0\0"),
    "storage without a header": lambda: build(changed("data/0", local_signature=b"PK\0\0")),
    "version without a header": lambda: build(changed("version", local_signature=b"PK\0\0")),
    "serialization id without a header": lambda: build(changed(".data/serialization_id", local_signature=b"PK\0\0")),
    "local name of another length": lambda: build(changed("data/0", local_name=b"a/data/zero")),
    "local name of the same length": lambda: build(changed("data/0", local_name=b"a/data/7")),
    "gap in front of a header": lambda: build(changed("data/1", before=bytes(4))),
    "gaps and no CRCs": lambda: build(
        every(lambda m: replace(m, before=b"" if m.name == b"a/data.pkl" else bytes(4), crc=0))
    ),
    "descriptors of zip64": lambda: _described(wide=True),
    "local extra fields": lambda: build(every(lambda m: replace(m, local_extra=b"FB\x05\x00ZZZZZ"))),
    "descriptors": lambda: _described(wide=False),
}  # fmt: skip


def _directory() -> bytes:
    plain = build(of_torch())
    nbytes, offset = struct.unpack_from("<II", plain, len(plain) - 10)
    return plain[offset : offset + nbytes]
