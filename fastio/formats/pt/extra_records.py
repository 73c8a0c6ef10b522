"""Checks the records beside an archive's tensors, and the settings among them that torch's reader obeys."""

from __future__ import annotations

import re
import sys

import torch

from fastio.formats.pt.reader import PICKLE, Archive

# The versions that torch.save and torch.jit.save write. torch's reader accepts a number from 1 to 10 (versions.h,
# kMinSupported... and kMaxSupportedFileFormatVersion) followed by any text.
_VERSION = re.compile(rb"(?:[1-9]|10)\n?")
_NUMBER = re.compile(rb"[0-9]{1,20}")
_DIGITS = re.compile(rb"[0-9]*")
_LONGEST = 64  # bytes of a setting's record
_LARGE = 64 << 20  # the largest record beside the tensors that is checked in memory, in bytes
_VERSIONS = (".data/version", "version")
_ALIGNMENT, _IDENTITY, _ORDER = ".storage_alignment", ".data/serialization_id", "byteorder"
_READ_ANYWAY = frozenset({PICKLE, *_VERSIONS, _ALIGNMENT, _IDENTITY, _ORDER})


def torch_only_reason(archive: Archive, verify: bool) -> str:
    """Return why only torch can read the archive, or refuse it; empty if fastio can.

    CorruptFileError for a record that does not match its CRC.
    """
    records = archive.records
    rest = [r for name, r in records.items() if not name.startswith("data/") and name not in _READ_ANYWAY and r.nbytes]
    for record in rest if verify else ():
        if record.nbytes > _LARGE:
            return "it has a large record beside its tensors"
        archive.read(record.name, verify)

    def small(name: str) -> bytes | None:
        """Return a record's bytes; b"" (which matches only _DIGITS) if it is longer than torch.save writes."""
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
    return "it was written on a machine of the other byte order" if has_foreign_byte_order(archive, verify) else ""


def has_foreign_byte_order(archive: Archive, verify: bool) -> bool:
    """Return whether the file was written on a machine of the other byte order, so that torch must swap bytes."""
    record = archive.records.get(_ORDER)
    if record is None:
        return sys.byteorder == "big" or torch.serialization.get_default_load_endianness() is not None
    order = archive.read(_ORDER, verify) if record.nbytes <= _LONGEST else b""
    return order != sys.byteorder.encode()
