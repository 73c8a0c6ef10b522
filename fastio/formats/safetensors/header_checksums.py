"""Checksums in the header of a ``.safetensors`` file, under a key of its metadata that is fastio's own.

The value is JSON: ``{"version":1,"table":"…","crc32":"…","sha256":"…"}``, the last one only if hashes were asked for.
``"metadata":null`` after the version says that the caller gave none: then "format" beside it is fastio's own, too.
``crc32`` has 8 hex digits for each tensor, ``sha256`` 64, in the order of the sorted names. ``table`` is the CRC-32 of
the names, dtypes and shapes, as JSON of three lists: it shows that the value was copied to a file of other tensors.
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Collection
from typing import Any

from fastio._native import crc32
from fastio.errors import ChecksumError, FormatError, quoted
from fastio.formats.safetensors.entries import HeaderEntries
from fastio.formats.safetensors.tensor_checksums import AS_IT_IS, TensorChecksums, stale_cure
from fastio.formats.safetensors.tensor_table import StoredTensors, TensorTable

PAGE = 4096
"""The data of fastio's files start on a page; other writers pad the header to 8 bytes."""
VERSION = 1
CRC_DIGITS, SHA_DIGITS = 8, 64
_EMPTY_SHA = hashlib.sha256().hexdigest()
_CRC_FIELD, _SHA_FIELD = rb"\"crc32\":\"", rb"\"sha256\":\""  # as they stand in the header, where quotes are escaped


class DamagedHeaderError(ChecksumError):
    """fastio wrote the header, and it was changed since."""


def reserved(stored: StoredTensors, hashes: bool, without_metadata: bool = False) -> str:
    """The value with the checksums of tensors without elements: room for all others."""
    count = len(stored[0])
    value: dict[str, Any] = {"version": VERSION, **({"metadata": None} if without_metadata else {})}
    value |= {"table": _table_crc(stored), "crc32": "0" * CRC_DIGITS * count}
    if hashes:
        value["sha256"] = _EMPTY_SHA * count
    return json.dumps(value, separators=(",", ":"))


def places(header: bytes | bytearray, count: int, hashes: bool) -> list[tuple[int, int | None]]:
    """Where the digits of each of ``count`` tensors, in the order of the sorted names, belong in a header.

    The value must be the first thing in the header.
    """
    crc = header.index(_CRC_FIELD) + len(_CRC_FIELD)
    sha = header.index(_SHA_FIELD, crc) + len(_SHA_FIELD) if hashes else None
    return [(crc + CRC_DIGITS * n, None if sha is None else sha + SHA_DIGITS * n) for n in range(count)]


def of_header(path: str, table: TensorTable) -> TensorChecksums | None:
    """The checksums in a file's header; None if it has none.

    ChecksumError if they are malformed, or belong to other tensors; FormatError if a newer fastio wrote them.
    """
    if table.checksums is None:
        return None
    try:
        value: Any = json.loads(table.checksums)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict) or not isinstance(value.get("version"), int):
        raise _malformed(path, table.checksums)
    check_version(path, value["version"])
    names = sorted(table.by_name)
    rewritten = table.start % PAGE != 0
    is_same = value.get("table") == _crc_of(table)
    if not is_same and not rewritten:
        raise DamagedHeaderError(
            path,
            None,
            "the names, dtypes and shapes in its header do not match their CRC-32: the file was damaged after fastio "
            f"wrote it; restore it from a copy{AS_IT_IS}",
        )
    if not is_same:
        raise ChecksumError(
            path,
            None,
            "its metadata hold fastio's checksums of other tensors (names, dtypes or shapes differ), as when another "
            f"program copies the metadata of one file to another; {stale_cure(path)}{AS_IT_IS}",
        )
    digits: Any = value.get("crc32")
    sha: Any = value.get("sha256")
    if not is_hex(digits, CRC_DIGITS * len(names)) or not (sha is None or is_hex(sha, SHA_DIGITS * len(names))):
        raise _malformed(path, table.checksums)
    starts = range(0, SHA_DIGITS * len(names), SHA_DIGITS)
    hashes = None if sha is None else {n: sha[at : at + SHA_DIGITS] for n, at in zip(names, starts, strict=True)}
    return TensorChecksums(numbers(names, digits), hashes, rewritten=rewritten)


def check_version(path: str, version: int) -> None:
    """Raise FormatError for checksums that a newer fastio wrote to ``path``."""
    if version != VERSION:
        raise FormatError(
            f"{path}: its checksums are of version {version}, this fastio knows version {VERSION}; install a newer "
            f"fastio{AS_IT_IS}"
        )


def is_hex(digits: Any, count: int) -> bool:
    """Whether it is text of so many lower-case hex digits."""
    return isinstance(digits, str) and len(digits) == count and not digits.strip("0123456789abcdef")


def numbers(names: Collection[str], digits: str) -> dict[str, int]:
    """The CRC-32s of tensors, of which each has 8 of the hex digits."""
    return dict(zip(names, struct.unpack(f">{len(names)}I", bytes.fromhex(digits)), strict=True))


def _crc_of(table: TensorTable) -> str:
    entries = table.entries
    found = entries.rows.table_crc() if isinstance(entries, HeaderEntries) else None
    return _table_crc(table.stored()) if found is None else f"{found:08x}"


def _table_crc(stored: StoredTensors) -> str:
    return f"{crc32(json.dumps(stored, separators=(',', ':')).encode()):08x}"


def _malformed(path: str, value: str) -> ChecksumError:
    return ChecksumError(
        path,
        None,
        f"its metadata hold fastio's checksums as {quoted(value)}, expected JSON with hex digits for each tensor: the "
        f"header was damaged, or another program changed it; restore it from a copy, or {stale_cure(path)}{AS_IT_IS}",
    )
