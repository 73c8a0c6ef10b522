"""A volume: named objects on a device, each of them whole or not there, also after a power cut."""

from __future__ import annotations

import os
from types import TracebackType

from fastio.errors import VolumeError, VolumeFullError
from fastio.runtime.uncopied import Uncopied
from fastio.sizes import exact_size, parse_size
from fastio.volumes import directory, journal, opening, superblock
from fastio.volumes.device import BLOCK, Device
from fastio.volumes.extents import Run, allocate
from fastio.volumes.journal import ObjectEntry
from fastio.volumes.names import check_name, missing
from fastio.volumes.new_object import NewObject
from fastio.volumes.superblock import Superblock
from fastio.volumes.transfers import read_bytes

_SHARE, _LEAST_JOURNAL, _MOST_JOURNAL = 64, 16, 4096  # an area's part of the volume's blocks; its bounds in blocks


class Volume(Uncopied):
    """The objects of a volume, by name. Make one by :meth:`create` or :meth:`open`. A context manager.

    One writer at a time; it has a lock. Readers may be at work beside it: they get whole objects, or an error. Used by
    one thread at a time.
    """

    def __init__(self, device: Device, is_writer: bool) -> None:
        self.device = device
        self.name = device.name
        self._is_writer = is_writer
        self._held: list[tuple[Run, ...]] = []  # of objects that are being written
        self._is_broken = False
        if is_writer:
            device.flush()  # what another process wrote and did not flush may be lost; it counts from here on
        self._directory, stale = directory.read(device)
        if is_writer and stale:
            superblock.write(device, self._directory.superblock, stale)

    @classmethod
    def create(
        cls, where: str | os.PathLike[str], nbytes: int | str | None = None, *, force: str | None = None
    ) -> Volume:
        """Make an empty volume, and open it for writing.

        Args:
            where: the path of a new file, ``file:`` and such a path, or a block device or namespace: see
                :meth:`open`.
            nbytes: the file's size, which is reserved: bytes, or a text such as "100GiB"; of a device None for all.
            force: the serial number of a drive that holds something, all of which may be lost.

        Raises:
            FileExistsError: there is a file. ValueError: too small, or no size. DeviceInUseError: the device is
            mounted, or holds something. TransferError (an OSError): the system refused; no new file is left.
            UnsupportedError for a URL.
        """
        size = parse_size(nbytes, "nbytes")
        if size is not None:
            _empty(os.fspath(where), size)  # raises before there is a file
        device = opening.create(os.fspath(where), size, force)
        try:
            return cls.create_on(device)
        except BaseException:
            device.discard()
            raise

    @classmethod
    def create_on(cls, device: Device, journal_blocks: int | None = None) -> Volume:
        """Make an empty volume on a device, whatever it holds, whose journal has areas of so many blocks."""
        empty = _empty(device.name, device.nbytes, journal_blocks)
        device.lock(0)
        superblock.write(device, empty)
        return cls(device, True)

    @classmethod
    def open(cls, where: str | os.PathLike[str], *, write: bool = False, wait_seconds: float = 0) -> Volume:
        """Open a volume: ``/path/to/volume``, ``file:/path/to/volume``, ``nvme:/dev/ng0n1``, ``vfio:0000:03:00.0``.

        Or ``nvme:0000:03:00.0``: the controller at that address, by any driver that can.

        Args:
            where: a regular file, a block device, or a namespace.
            write: become the one writer.
            wait_seconds: how long another writer is waited for.

        Raises:
            VolumeError: it is none. VolumeInUseError: another process, or another Volume of this one, writes to it.
            CorruptFileError: its superblock or its journal is damaged. FileNotFoundError, TransferError (an OSError).
            UnsupportedError for a URL.
        """
        device = opening.open(os.fspath(where), write)
        try:
            if write:
                device.lock(wait_seconds)
            return cls(device, write)
        except BaseException:
            device.close()
            raise

    def ls(self) -> list[ObjectEntry]:
        """The objects, by name: ``name``, ``nbytes``, ``time_ns`` when it was saved, ``runs`` of blocks."""
        return [self._directory.live[name] for name in sorted(self._directory.live)]

    def find(self, name: str) -> ObjectEntry:
        """An object. FileNotFoundError, with names that are alike; VolumeError for what is no name."""
        check_name(self.name, name)
        entry = self._directory.live.get(name)
        if entry is None:
            raise missing(self.name, name, self._directory.live)
        return entry

    def read(self, name: str) -> bytes:
        """All bytes of an object. FileNotFoundError; VolumeError if it was replaced or removed meanwhile."""
        entry = self.find(name)
        data = read_bytes(self.device, entry.runs, 0, entry.nbytes)
        self.check_unchanged(entry)
        return data

    def check_unchanged(self, entry: ObjectEntry) -> None:
        """Raise VolumeError if the blocks of an object may be another's by now: then what was read is none of it."""
        if self._is_writer:
            return
        self.refresh()
        now = self._directory.live.get(entry.name)
        if now is None or now.number != entry.number:
            raise VolumeError(
                f"{self.name}/{entry.name}: another process has {'removed' if now is None else 'replaced'} it while it "
                "was read: read it again"
            )

    def check_alone(self) -> None:
        """Raise VolumeError if another process became the writer meanwhile: while the device changed its driver."""
        if not directory.is_current(self.device, self._directory):
            raise VolumeError(f"{self.name}: another process wrote to it while it changed its driver: save again")

    def refresh(self) -> None:
        """See what a writer has done since. A writer itself need not."""
        if not self._is_writer and not directory.is_current(self.device, self._directory):
            self._directory = directory.read(self.device)[0]

    def write(self, name: str, data: bytes | memoryview) -> None:
        """Save an object, which replaces one of that name. It is whole or not there, also after a power cut."""
        with self.new(name) as new:
            new.fill(data)
            new.commit()

    def new(self, name: str) -> NewObject:
        """A new object, which is allocated, filled and committed step by step."""
        return NewObject(self, name)

    def rm(self, name: str) -> None:
        """Remove an object. FileNotFoundError."""
        entry = self.find(name)
        self._append(ObjectEntry(journal.DELETE, entry.number, name))

    @property
    def nbytes(self) -> int:
        """The bytes that objects can have together, in blocks of 4096."""
        here = self._directory.superblock
        return (here.blocks - here.first_data_block) * BLOCK

    @property
    def free_nbytes(self) -> int:
        """The bytes that new objects can have."""
        return sum(run.blocks for run in self._free()) * BLOCK

    def hold(self, name: str, nbytes: int) -> tuple[Run, ...]:
        """Blocks for a new object, which are its own until they are given to :meth:`add` or :meth:`release`.

        VolumeFullError, with what is needed and what is free.
        """
        check_name(self.name, name)
        self._require_writer()
        live, most = self._directory.live, self._directory.superblock.journal_blocks - 1
        if name not in live and len(live) + len(self._held) >= most:
            raise VolumeFullError(self.name, f"it holds {len(live)} objects, and its journal has room for {most}")
        free, blocks = self._free(), -(-nbytes // BLOCK)
        runs = allocate(free, blocks, self._directory.after, journal.MOST_RUNS)
        if runs is None:
            room = sum(run.blocks for run in free) * BLOCK
            where = f" in {len(free)} pieces" if room >= nbytes else ""
            raise VolumeFullError(self.name, f"{name} needs {exact_size(nbytes)}, {exact_size(room)} are free{where}")
        self._held.append(runs)
        return runs

    def add(self, name: str, nbytes: int, runs: tuple[Run, ...]) -> None:
        """Make a new object of flushed blocks visible. Those of the old one of that name become free."""
        self._append(journal.new_entry(self._directory.next_number, name, nbytes, runs))
        self.release(runs)

    def release(self, runs: tuple[Run, ...]) -> None:
        """Give the blocks of a new object back."""
        if runs in self._held:
            self._held.remove(runs)

    def close(self) -> None:
        """Close the device, and release the lock."""
        self.device.close()

    def _free(self) -> list[Run]:
        return self._directory.free([run for runs in self._held for run in runs])

    def _append(self, entry: ObjectEntry) -> None:
        self._require_writer()
        self._is_broken = True  # if this does not end, nobody knows what the device has
        here = self._directory
        if here.used == here.superblock.journal_blocks:
            self._compact()
            here = self._directory
        journal.write(self.device, here.superblock, here.used, [entry])
        self.device.flush()
        here.add(entry)
        self._is_broken = False

    def _compact(self) -> None:
        """Write the live entries to the other area, and switch to it."""
        here, live = self._directory.superblock, list(self._directory.live.values())
        # Entries that an earlier attempt left there must not count: hence a generation that no other attempt has.
        generation = here.generation + 1 + _random()
        first = self._directory.next_number
        new = here._replace(generation=generation, area=1 - here.area, first_sequence=first)
        if live:
            journal.write(self.device, new, 0, live)
            self.device.flush()
        superblock.write(self.device, new)
        self._directory = directory.Directory(new, live)

    def _require_writer(self) -> None:
        if not self._is_writer:
            raise VolumeError(f"{self.name}: it is open for reading; open it with write=True")
        if self._is_broken:
            raise VolumeError(f"{self.name}: an earlier write to its journal failed; close it and open it again")

    def __enter__(self) -> Volume:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def _random() -> int:
    """A number below 2 to the power of 32."""
    return int.from_bytes(os.urandom(4), "little")


def _empty(name: str, nbytes: int, journal_blocks: int | None = None) -> Superblock:
    """The superblock of a new volume of so many bytes. ValueError if these are too few."""
    blocks = nbytes // BLOCK
    area = journal_blocks or min(max(blocks // _SHARE, _LEAST_JOURNAL), _MOST_JOURNAL)
    empty = Superblock(os.urandom(16), _random(), blocks, area, 0, 0)
    if empty.first_data_block >= blocks:
        least = (empty.first_data_block + 1) * BLOCK
        raise ValueError(f"{name}: a volume needs at least {exact_size(least)}, got {exact_size(nbytes)}")
    return empty
