"""The records of an archive beside its tensors: whether they are intact, and those that torch's reader goes by."""

from __future__ import annotations

import re
import sys

import torch

from fastio.formats.pt.reader import PICKLE, Archive

# What torch.save and torch.jit.save write. torch's reader takes a number from 1 to 10 (versions.h, kMinSupported... and
# kMaxSupportedFileFormatVersion) with whatever stands behind it.
_VERSION = re.compile(rb"(?:[1-9]|10)\n?")
_NUMBER = re.compile(rb"[0-9]{1,20}")
_DIGITS = re.compile(rb"[0-9]*")
_LONGEST = 64  # bytes of such a record
_LARGE = 64 << 20  # bytes that a record beside the tensors may have to be checked in memory
_VERSIONS = (".data/version", "version")
_ALIGNMENT, _IDENTITY, _ORDER = ".storage_alignment", ".data/serialization_id", "byteorder"
_READ_ANYWAY = frozenset({PICKLE, *_VERSIONS, _ALIGNMENT, _IDENTITY, _ORDER})


def why_torch_decides(archive: Archive, verify: bool) -> str:
    """Why torch must say whether it opens the archive, and what it makes of it; empty if that is known here.

    CorruptFileError for a record that does not match its CRC.
    """
    records = archive.records
    spare = [r for name, r in records.items() if not name.startswith("data/") and name not in _READ_ANYWAY and r.nbytes]
    for record in spare if verify else ():
        if record.nbytes > _LARGE:
            return "it has a large record beside its tensors"
        archive.read(record.name, verify)

    def small(name: str) -> bytes | None:
        """A record's bytes; of a longer one than torch.save writes, none that anything matches."""
        if name not in records:
            return None
        return archive.read(name, verify) if records[name].nbytes <= _LONGEST else b""

    version = small(next((name for name in _VERSIONS if name in records), ""))
    if version is None or not _VERSION.fullmatch(version):
        return "its version is none that torch.save writes"
    alignment = small(_ALIGNMENT)
    if alignment is not None and not _NUMBER.fullmatch(alignment):
        return "its storage alignment is none that torch.save writes"
    identity = small(_IDENTITY)
    if identity is not None and not _DIGITS.fullmatch(identity):
        return "its serialization id is none that torch.save writes"
    return "it was written on a machine of the other byte order" if is_foreign(archive, verify) else ""


def is_foreign(archive: Archive, verify: bool) -> bool:
    """Whether the file was written on a machine of the other byte order, so that torch must swap bytes."""
    record = archive.records.get(_ORDER)
    if record is None:
        return sys.byteorder == "big" or torch.serialization.get_default_load_endianness() is not None
    order = archive.read(_ORDER, verify) if record.nbytes <= _LONGEST else b""
    return order != sys.byteorder.encode()
