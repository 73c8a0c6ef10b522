"""The directory of a volume, as the journal's entries make it: which objects there are, and where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from fastio.errors import CorruptFileError
from fastio.volumes import journal
from fastio.volumes.device import BLOCK, Device
from fastio.volumes.extents import Run, free_runs
from fastio.volumes.journal import ObjectEntry
from fastio.volumes.superblock import Superblock
from fastio.volumes.superblock import read as read_superblock


class Directory:
    """The live entries by name, the newest last. ``used`` entries of the journal are taken.

    ``after`` is the block behind the newest object.
    """

    def __init__(self, superblock: Superblock, entries: Sequence[ObjectEntry]) -> None:
        self.superblock = superblock
        self.used = 0
        self.live: dict[str, ObjectEntry] = {}
        self.after = superblock.first_data_block
        for entry in entries:
            self.add(entry)

    def add(self, entry: ObjectEntry) -> None:
        """Take the next entry of the journal into account."""
        self.used += 1
        self.live.pop(entry.name, None)
        if entry.kind == journal.DELETE:
            return
        self.live[entry.name] = entry
        if entry.runs:
            self.after = entry.runs[-1].end

    @property
    def next_number(self) -> int:
        """The number of the next new object: it rises with each entry, and compaction keeps that."""
        return self.superblock.first_sequence + self.used

    def free(self, held: Sequence[Run] = ()) -> list[Run]:
        """The free runs of blocks. ``held`` are not free either. ValueError if entries contradict each other."""
        used = [run for entry in self.live.values() for run in entry.runs]
        return free_runs([*used, *held], self.superblock.first_data_block, self.superblock.blocks)


def read(device: Device) -> tuple[Directory, list[int]]:
    """The directory as it is on the device now, and which copies of the superblock must be written again.

    A writer may be at work beside this. Raises as :func:`fastio.volumes.superblock.read` and
    :func:`fastio.volumes.journal.read` do.
    """
    while True:
        superblock, stale = read_superblock(device)
        try:
            entries = journal.read(device, superblock)
        except CorruptFileError:
            if read_superblock(device)[0] != superblock:
                continue
            raise
        # A writer uses an area again only after it has written the superblock of the other one.
        if read_superblock(device)[0] == superblock:
            break
    directory = Directory(superblock, entries)
    _check(device, directory)
    return directory, stale


def is_current(device: Device, directory: Directory) -> bool:
    """Whether a writer has added no entry since the directory was read."""
    here = directory.superblock
    if read_superblock(device)[0] != here:
        return False
    return directory.used == here.journal_blocks or journal.read_one(device, here, directory.used) is None


def _check(device: Device, directory: Directory) -> None:
    """Raise CorruptFileError if entries contradict each other, whose checksums are right."""
    try:
        directory.free()
    except ValueError as error:
        raise CorruptFileError(device.name, "journal", f"{error}; restore it from a copy", noun="part") from None
    for entry in directory.live.values():
        room = sum(run.blocks for run in entry.runs) * BLOCK
        if not room - BLOCK < entry.nbytes <= room:
            problem = f"it has {entry.nbytes} bytes, expected more than {room - BLOCK} and at most {room}"
            raise CorruptFileError(device.name, entry.name, f"{problem}; restore it from a copy", noun="object")
