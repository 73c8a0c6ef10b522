"""Rewrites torch's archives as other programs would: the same records in other valid zip files."""

from __future__ import annotations

import io
import random
import struct
import zipfile
import zlib
from pathlib import Path
from typing import NamedTuple


class Rewrite(NamedTuple):
    """``kind``: by Python's zipfile to a file or to a stream, or record by record with the other fields.

    ``gap``: the most bytes between records; ``crc``: with checksums; ``descriptor``: checksums and sizes follow the
    data; ``extra``: bytes of extra fields in local headers; ``order``: a seed for the order of records, or None.
    """

    kind: str
    gap: int
    crc: bool
    descriptor: bool
    extra: int
    order: int | None


def any_kind(rng: random.Random) -> Rewrite:
    return Rewrite(
        rng.choice(["zipfile", "stream", "records", "records"]), rng.choice([0, 0, 4, 5000]), rng.random() < 0.5,
        rng.random() < 0.5, rng.choice([0, 0, 4, 36, 4000]), rng.choice([None, None, rng.getrandbits(32)]),
    )  # fmt: skip


class _Stream(io.RawIOBase):
    """A stream that cannot seek, so zipfile writes data descriptors."""

    def __init__(self, file: io.BytesIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


def rewrite(how: Rewrite, path: Path) -> bool:
    """Rewrite a file in place; returns False if it is not a zip file."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        records = [(info.filename, archive.read(info)) for info in archive.infolist()]
    made = io.BytesIO()
    if how.kind == "records":
        _write(how, records, made)
    else:
        with zipfile.ZipFile(_Stream(made) if how.kind == "stream" else made, "w") as archive:
            for name, data in records:
                with archive.open(zipfile.ZipInfo(name), "w", force_zip64=how.extra > 0) as member:
                    member.write(data)
    path.write_bytes(made.getvalue())
    return True


def _write(how: Rewrite, records: list[tuple[str, bytes]], out: io.BytesIO) -> None:
    """Write a zip file by PKWARE's APPNOTE 6.3: sections 4.3.7 (local header), 4.3.9, 4.3.12 and 4.3.16."""
    rng = random.Random(how.order)
    if how.order is not None:
        rng.shuffle(records)
    directory = b""
    for name, data in records:
        out.write(bytes(rng.randrange(how.gap + 1)))
        offset, crc, encoded = out.tell(), zlib.crc32(data) if how.crc else 0, name.encode()
        flags = 0x808 if how.descriptor else 0x800
        there = (0, 0, 0) if how.descriptor else (crc, len(data), len(data))
        extra = struct.pack("<2sH", b"FB", how.extra - 4) + b"Z" * (how.extra - 4) if how.extra else b""
        out.write(struct.pack("<4s5H3I2H", b"PK\3\4", 20, flags, 0, 0, 33, *there, len(encoded), len(extra)))
        out.write(encoded + extra + data)
        if how.descriptor:
            out.write(struct.pack("<4s3I", b"PK\7\x08", crc, len(data), len(data)))
        sizes = (crc, len(data), len(data), len(encoded))
        entry = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, flags, 0, 0, 33, *sizes, 0, 0, 0, 0, 0, offset)
        directory += entry + encoded
    at = out.tell()
    out.write(directory)
    out.write(struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, len(records), len(records), len(directory), at, 0))
