"""The journal: one block for each object that is made or removed, in the order in which that happened.

An entry counts if its checksum is right, and if it is this volume's, of this generation, and the next in sequence. The
first block that is none is the journal's end: it is empty, old, or was torn by a power cut. An entry is flushed before
the next is written, so one that counts behind the end means damage.
"""

from __future__ import annotations

import struct
import time
from typing import Final, NamedTuple

from fastio._native import crc32
from fastio.errors import CorruptFileError
from fastio.volumes.device import BLOCK, Device
from fastio.volumes.extents import Run
from fastio.volumes.superblock import Superblock

CREATE: Final = 1
DELETE: Final = 2
LONGEST_NAME: Final = 1023
"""Bytes of a name in UTF-8."""

_MAGIC: Final = b"FVJE"
# Magic, kind, the volume's uuid, generation, sequence, object, bytes, time in ns, bytes of the name, runs; then the
# runs and the name. The block's last bytes are the CRC-32 of those before.
_FIELDS = struct.Struct("<4sI16s5QII")
_RUN = struct.Struct("<2Q")
_CRC = struct.Struct("<I")
_AT_ONCE: Final = 256  # blocks that are read at once, and at most beyond the end
MOST_RUNS: Final = (BLOCK - _FIELDS.size - LONGEST_NAME - _CRC.size) // _RUN.size


class ObjectEntry(NamedTuple):
    """An object that was made, or removed (``kind``). ``number`` is the object's, and no other's of this volume.

    The object's ``nbytes`` bytes lie in ``runs``, in this order. ``time_ns`` is when its entry was written first.
    """

    kind: int
    number: int
    name: str
    nbytes: int = 0
    runs: tuple[Run, ...] = ()
    time_ns: int = 0


def write(device: Device, superblock: Superblock, index: int, entries: list[ObjectEntry]) -> None:
    """Write entries as those of the journal from ``index`` on. The caller flushes."""
    blocks = b"".join(_pack(superblock, index + number, entry) for number, entry in enumerate(entries))
    device.write(superblock.journal_offset + index * BLOCK, blocks)


def read(device: Device, superblock: Superblock) -> list[ObjectEntry]:
    """All entries. CorruptFileError, which names the offset, if one that is not the last is damaged."""
    entries: list[ObjectEntry] = []
    end: int | None = None  # the first block that is no entry; more are looked at, to tell damage from the end
    for first in range(0, superblock.journal_blocks, _AT_ONCE):
        count = min(_AT_ONCE, superblock.journal_blocks - first)
        blocks = device.read(superblock.journal_offset + first * BLOCK, count * BLOCK)
        for number in range(count):
            entry = _unpack(superblock, first + number, blocks[number * BLOCK : (number + 1) * BLOCK])
            if entry is None:
                end = first + number if end is None else end
            elif end is None:
                entries.append(entry)
            else:
                raise _damaged(device, superblock, end)
        if end is not None and end <= first:
            break
    return entries


def _damaged(device: Device, superblock: Superblock, index: int) -> CorruptFileError:
    offset = superblock.journal_offset + index * BLOCK
    block = device.read(offset, BLOCK)
    got, (expected,) = crc32(block[: -_CRC.size]), _CRC.unpack(block[-_CRC.size :])
    problem = f"got the CRC-32 {got:08x}, expected {expected:08x}, at offset {offset}; restore it from a copy"
    return CorruptFileError(device.name, str(index), problem, noun="journal entry")


def read_one(device: Device, superblock: Superblock, index: int) -> ObjectEntry | None:
    """The entry with this index, if there is one."""
    return _unpack(superblock, index, device.read(superblock.journal_offset + index * BLOCK, BLOCK))


def new_entry(number: int, name: str, nbytes: int, runs: tuple[Run, ...]) -> ObjectEntry:
    """The entry of an object that is made now."""
    return ObjectEntry(CREATE, number, name, nbytes, runs, time.time_ns())


def _pack(superblock: Superblock, index: int, entry: ObjectEntry) -> bytes:
    name = entry.name.encode()
    fields = _FIELDS.pack(
        _MAGIC, entry.kind, superblock.uuid, superblock.generation, superblock.first_sequence + index, entry.number,
        entry.nbytes, entry.time_ns, len(name), len(entry.runs),
    )  # fmt: skip
    runs = b"".join(_RUN.pack(*run) for run in entry.runs)
    block = (fields + runs + name).ljust(BLOCK - _CRC.size, b"\0")
    return block + _CRC.pack(crc32(block))


def _unpack(superblock: Superblock, index: int, block: bytes) -> ObjectEntry | None:
    """The entry in the block with this index of the journal; None if it does not count."""
    magic, kind, uuid, generation, sequence, number, nbytes, time_ns, length, runs = _FIELDS.unpack_from(block)
    here = _MAGIC, superblock.uuid, superblock.generation, superblock.first_sequence + index
    if (magic, uuid, generation, sequence) != here:
        return None
    if crc32(block[: -_CRC.size]) != _CRC.unpack(block[-_CRC.size :])[0]:
        return None
    begin = _FIELDS.size + runs * _RUN.size
    places = tuple(Run(*run) for run in _RUN.iter_unpack(block[_FIELDS.size : begin]))
    return ObjectEntry(kind, number, block[begin : begin + length].decode(), nbytes, places, time_ns)
