"""The superblock: what a volume is, and where its journal is. There are two copies, in the first two blocks.

A new superblock is written to the first copy, flushed, written to the second, and flushed; the journal that it names is
used only then. So a copy that a power cut tore is never the only one that tells of an object.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from fastio._native import crc32
from fastio.errors import CorruptFileError, VolumeError
from fastio.sizes import exact_size
from fastio.volumes.device import BLOCK, Device

_MAGIC: Final = b"FASTIOVO"
_VERSION: Final = 1
# Magic, version, bytes of a block; then the fields of Superblock. All within the 512 bytes that no device tears.
_FIELDS = struct.Struct("<8sII16s5Q")
_CRC = struct.Struct("<I")
_COPIES: Final = 2


class Superblock(NamedTuple):
    """The geometry of a volume of ``blocks`` blocks, and its journal: area ``area`` of two, from ``first_sequence`` on.

    ``generation`` rises with each superblock: entries of the journal carry it. Each area has ``journal_blocks`` blocks.
    """

    uuid: bytes
    generation: int
    blocks: int
    journal_blocks: int
    area: int
    first_sequence: int

    @property
    def journal_offset(self) -> int:
        """The byte at which the journal begins."""
        return (_COPIES + self.area * self.journal_blocks) * BLOCK

    @property
    def first_data_block(self) -> int:
        """The first block that objects may have."""
        return _COPIES + 2 * self.journal_blocks


def write(device: Device, superblock: Superblock, copies: Sequence[int] = range(_COPIES)) -> None:
    """Write and flush both copies, or only these, one after the other."""
    fields = _FIELDS.pack(_MAGIC, _VERSION, BLOCK, *superblock)
    block = (fields + _CRC.pack(crc32(fields))).ljust(BLOCK, b"\0")
    for copy in copies:
        device.write(copy * BLOCK, block)
        device.flush()


def is_volume(path: str) -> bool:
    """Whether a regular file or a block device has a volume's superblock. OSError if it cannot be read."""
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not (stat.S_ISREG(mode) or stat.S_ISBLK(mode)):
        return False
    with open(path, "rb") as file:
        both = file.read(_COPIES * BLOCK)
    return any(both[copy * BLOCK :].startswith(_MAGIC) for copy in range(_COPIES))


def read(device: Device) -> tuple[Superblock, list[int]]:
    """The newest superblock that is whole, and which copies are not that one.

    VolumeError if the device holds no volume, or one of another version; CorruptFileError if both copies are damaged,
    or the device is smaller than the volume.
    """
    if device.nbytes < (_COPIES + 2) * BLOCK:
        raise _no_volume(device, f"it has {exact_size(device.nbytes)}")
    both = device.read(0, _COPIES * BLOCK)
    copies = [both[copy * BLOCK : (copy + 1) * BLOCK] for copy in range(_COPIES)]
    if not any(copy.startswith(_MAGIC) for copy in copies):
        raise _no_volume(device, f"it begins with {copies[0][:8]!r}")
    problems: list[str] = []
    each = [_unpack(device, copy, number * BLOCK, problems) for number, copy in enumerate(copies)]
    found = [superblock for superblock in each if superblock is not None]
    if not found:
        raise CorruptFileError(device.name, "superblock", f"both copies are damaged: {'; '.join(problems)}")
    newest = max(found, key=lambda superblock: superblock.generation)
    if newest.blocks * BLOCK > device.nbytes:
        raise CorruptFileError(
            device.name,
            "superblock",
            f"the volume has {exact_size(newest.blocks * BLOCK)}, got a device of {exact_size(device.nbytes)}: it was "
            "cut short; restore it from a copy",
        )
    return newest, [number for number, superblock in enumerate(each) if superblock != newest]


def _unpack(device: Device, block: bytes, offset: int, problems: list[str]) -> Superblock | None:
    """The superblock in a block; None if it is damaged, with what is wrong among the ``problems``."""
    magic, version, block_nbytes, *fields = _FIELDS.unpack_from(block)
    (expected,) = _CRC.unpack_from(block, _FIELDS.size)
    got = crc32(block[: _FIELDS.size])
    if got != expected or magic != _MAGIC:
        problems.append(f"got the CRC-32 {got:08x}, expected {expected:08x}, at offset {offset}")
        return None
    if version != _VERSION or block_nbytes != BLOCK:
        raise VolumeError(
            f"{device.name}: it is a volume of version {version} with blocks of {block_nbytes} bytes, expected version "
            f"{_VERSION} and {BLOCK}: use the fastio that made it"
        )
    return Superblock(*fields)


def _no_volume(device: Device, found: str) -> VolumeError:
    return VolumeError(
        f"{device.name}: it is no volume: {found}, expected {_MAGIC!r} at offset 0; make a new volume with `fastio "
        "volume create`"
    )
