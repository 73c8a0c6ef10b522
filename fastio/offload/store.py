"""The block store: write once in sequence, read back in reverse, forget (FlashNeuron, section 3.4).

Each blob has an index of the caller's choosing. ``write`` and ``read`` queue commands and return; ``update`` hands them
to the device and takes what is done; there is no thread to do it behind one's back. Nothing outlives the process.

    store = BlockStore("/nvme/scratch")
    store.write(0, tensor.data_ptr(), tensor.nbytes)
    store.wait(0)
    store.read(0, other.data_ptr(), other.nbytes)
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal

from fastio import _native
from fastio.errors import FastIOError, RefusedError, TransferError
from fastio.native_errors import NativeError, named, public_error
from fastio.offload.endurance import Drive
from fastio.offload.places import Place, close_places, open_places

BLOCK = 4096
DRIVERS = ("uring", "threads")

Direction = Literal["write", "read"]


class StoreGoneError(FastIOError, RuntimeError):
    """The store is closed, or belongs to the process that forked this one."""


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store has done since it was opened. Bytes are the device's: whole blocks."""

    bytes_written: int
    bytes_read: int
    bytes_bounced: int  # copied through aligned memory on their way
    commands_written: int
    commands_read: int
    commands_under_way: int
    bytes_used: int
    bytes_provisioned: int
    seconds: float  # since the store was opened
    drive_nbytes: int
    drive_writes_per_day: float
    lifetime_days: float  # of a drive rated at 3 drive writes a day for 5 years


class BlockStore:
    """Blobs on unnamed files in folders, on empty files or on whole block devices; striped where there are several.

    ``capacity`` is in bytes over all places, 0 for what they have. Memory given by address must stay until its
    transfer is done or its index freed. Any thread may call any method; one that waits keeps no other from going on.
    Memory that direct I/O cannot reach as it lies (most tensors': they begin 64 bytes into a page) is copied, on a
    write, by the thread that calls ``update``, ``is_done`` or ``wait``, into 4 MiB that the store then keeps. Where
    ``whole_pages`` is true a caller can spare that by moving all of the pages that his memory touches: the filesystem
    and the device do not mind if bytes of others there change meanwhile. A context manager.

    Raises FolderMissingError, TransferError, and ValueError for an unknown driver; every method StoreGoneError after
    ``close`` and in a child of fork. Where io_uring is forbidden the driver ``threads`` takes over, and :attr:`notes`
    say so.
    """

    def __init__(
        self,
        places: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        capacity: int = 0,
        driver: str = "uring",
    ) -> None:
        if driver not in DRIVERS:
            raise ValueError(f"unknown driver {driver!r}: expected one of {', '.join(DRIVERS)}")
        if capacity < 0 or 0 < capacity < BLOCK:
            raise ValueError(f"a capacity has at least one block of {BLOCK} bytes (0: no limit), got {capacity}")
        paths = [places] if isinstance(places, (str, os.PathLike)) else list(places)
        if not paths:
            raise ValueError("a block store needs at least one place")
        notes: list[str] = []
        opened = open_places(paths)
        try:
            self._native, self.driver = _open_native(opened, capacity, driver, notes)
        except BaseException:
            close_places(opened)
            raise
        notes += [f"{place.path}: no direct I/O, so through the page cache" for place in opened if not place.direct]
        self._notes = tuple(notes)
        self.places = tuple(place.path for place in opened)
        self.whole_pages = all(place.bears_changes for place in opened)
        self._naming = _Naming(", ".join(self.places), self.driver)
        drives = {place.drive: place.drive_nbytes for place in opened}
        self._drive = Drive(sum(drives.values()))
        self._opened = time.monotonic()
        self._recording = False

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Queue the write of a new blob. ValueError if the index is taken, TransferError (ENOSPC) if it has no room."""
        self.issue(index, address, nbytes, "write")

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Queue the read of a blob's first ``nbytes``, after its write if that is under way.

        IndexError if there is no such blob, ValueError if it is shorter. A read that failed may be tried again.
        """
        self.issue(index, address, nbytes, "read")

    def issue(self, index: int, address: int, nbytes: int, direction: Direction) -> None:
        """Queue a transfer; the paper's ``P2PDSA_issue``."""
        if direction not in ("write", "read"):
            raise ValueError(f"expected the direction 'write' or 'read', got {direction!r}")
        with self._naming:
            self._native.issue(index, address, nbytes, direction == "write")

    def update(self) -> int:
        """Submit what there is room for and take what is done; how many commands are still under way."""
        with self._naming:
            return self._native.update()

    def is_done(self, index: int) -> bool:
        """Whether nothing of this blob is under way, updating if need be. Raises the TransferError it ended with."""
        with self._naming:
            done, failure = self._native.is_done(index)
        if failure is not None:
            raise self._error(index, *failure)
        return done

    def wait(self, index: int) -> None:
        """Until nothing of this blob is under way. Raises the TransferError it ended with."""
        with self._naming:
            failure = self._native.wait(index)
        if failure is not None:
            raise self._error(index, *failure)

    def free(self, index: int) -> None:
        """Forget a blob, whatever is under way; its memory is the caller's again. IndexError if there is none."""
        with self._naming:
            self._native.free(index)

    def __contains__(self, index: int) -> bool:
        with self._naming:
            return self._native.contains(index)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not go the usual way, and why. What concerns unaligned memory is known when some was moved."""
        return (*self._notes, *self._native.notes())

    @property
    def recording(self) -> bool:
        """Whether the trace grows; setting it begins a new one."""
        return self._recording

    @recording.setter
    def recording(self, recording: bool) -> None:
        self._native.set_recording(recording)
        self._recording = recording

    @property
    def trace(self) -> list[tuple[Direction, int, int, int]]:
        """The latest 65,536 commands sent while recording: direction, device, first LBA on it, blocks."""
        return [
            ("write" if write else "read", device, lba, blocks) for write, device, lba, blocks in self._native.trace()
        ]

    @property
    def stats(self) -> StoreStats:
        """What was moved, and what that means for the drive; of a closed store too."""
        with self._naming:
            counts = self._native.stats()
        seconds = time.monotonic() - self._opened
        written = counts["bytes_written"]
        return StoreStats(
            **counts,
            seconds=seconds,
            drive_nbytes=self._drive.nbytes,
            drive_writes_per_day=self._drive.drive_writes_per_day(written, seconds),
            lifetime_days=self._drive.lifetime_days(written / seconds if seconds > 0 else 0.0),
        )

    def close(self) -> None:
        """Drop what is queued, wait for the device, and give the space back. Twice is fine."""
        with self._naming:
            self._native.close()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _error(self, index: int, number: int, write: bool, device: int, lba: int, stuck: bool) -> TransferError:
        operation = f"driver {self.driver}: {'write' if write else 'read'} of index {index} at LBA {lba}"
        if stuck:
            operation += " (the device stopped moving bytes without an error)"
        return TransferError(number, operation, self.places[device], lba * BLOCK)


class _Naming:
    """A context in which native errors become the public ones; without a generator, for it surrounds every call."""

    __slots__ = ("_driver", "_path")

    def __init__(self, path: str, driver: str) -> None:
        self._path = path
        self._driver = driver

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        public = self._public(error)
        if public is not None:
            try:
                raise public from None
            finally:
                # Else the error holds this frame and the frame the error, and with them all that the caller is at.
                del public, error, at

    def _public(self, error: BaseException | None) -> Exception | None:
        if isinstance(error, NativeError):
            public = public_error(error, self._path)
            if isinstance(public, RefusedError):
                return TransferError(errno.EIO, f"driver {self._driver} ({public})", self._path)
            return public
        if isinstance(error, RuntimeError) and not isinstance(error, FastIOError):
            return StoreGoneError(f"{self._path}: {error}")
        return None


def _open_native(
    places: Sequence[Place], capacity: int, driver: str, notes: list[str]
) -> tuple[_native.BlockStore, str]:
    devices = [(place.fd, place.fixed_blocks) for place in places]
    alignment = max(place.memory_alignment for place in places)
    path = ", ".join(place.path for place in places)
    try:
        with named(path):
            return _native.BlockStore(devices, capacity // BLOCK, driver, alignment), driver
    except RefusedError as error:
        if driver != "uring":
            raise TransferError(errno.EIO, f"driver {driver} ({error})", path) from None
        notes.append(f"driver 'threads' instead of 'uring': {error}")
        return _open_native(places, capacity, "threads", notes)
