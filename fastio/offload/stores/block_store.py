"""The block store: write once in sequence, read back in reverse, forget (FlashNeuron, section 3.4).

Each blob has an index of the caller's choosing. ``write`` and ``read`` queue commands and return; ``update`` hands them
to the device and takes what is done; there is no thread to do it behind one's back. Nothing outlives the process.

    store = BlockStore("/nvme/scratch")
    store.write(0, tensor.data_ptr(), tensor.nbytes)
    store.wait(0)
    store.read(0, other.data_ptr(), other.nbytes)
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from fastio.offload.stores.endurance import Drive
from fastio.offload.stores.store_errors import BLOCK, Failure, Naming, StoreGoneError, transfer_error
from fastio.offload.stores.store_opening import open_store

__all__ = ["BLOCK", "BlockStore", "Direction", "StoreGoneError", "StoreStats"]

Direction = Literal["write", "read"]


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
    retries: int  # commands sent again because NVMe said that it may help
    doorbells: int  # writes to the devices' doorbells, by drivers that ring them themselves
    system_calls: int  # calls of the kernel to move data, by the drivers uring and nvme
    seconds: float  # since the store was opened
    drive_nbytes: int
    drive_writes_per_day: float
    lifetime_days: float  # of a drive rated at 3 drive writes a day for 5 years


class BlockStore:
    """Blobs on unnamed files in folders, on empty files or on whole block devices; striped where there are several.

    A place such as "nvme:/dev/ng0n1" is an NVMe namespace by the kernel's passthrough, "vfio:0000:03:00.0" a controller
    driven by this process, "spdk:trtype=TCP traddr=..." one driven by SPDK; ``driver`` says the same of places without
    the word before the colon. The drivers of files and block devices are "uring" and "threads".

    ``capacity`` is in bytes over all places, 0 for what they have. Memory given by address must stay until its
    transfer is done or its index freed. Any thread may call any method; one that waits keeps no other from going on.
    Memory that direct I/O cannot reach as it lies (most tensors': they begin 64 bytes into a page) is copied, on a
    write, by the thread that calls ``update``, ``is_done`` or ``wait``, into 4 MiB that the store then keeps. Where
    ``whole_pages`` is true a caller can spare that by moving all of the pages that his memory touches: the filesystem
    and the device do not mind if bytes of others there change meanwhile. Where ``wants_map`` is true (vfio, spdk)
    all memory that was not given to ``map`` is copied. A context manager.

    Raises FolderMissingError, TransferError, ValueError for an unknown driver or places of several, and
    DeviceInUseError for a device that is in use, or that holds something and whose serial number ``force`` is not;
    every method StoreGoneError after ``close`` and in a child of fork. Where io_uring is forbidden the driver
    ``threads`` takes over from ``uring``, and :attr:`notes` say so.
    """

    def __init__(
        self,
        places: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        capacity: int = 0,
        driver: str | None = None,
        force: str | None = None,
    ) -> None:
        if capacity < 0 or 0 < capacity < BLOCK:
            raise ValueError(f"a capacity has at least one block of {BLOCK} bytes (0: no limit), got {capacity}")
        paths = [places] if isinstance(places, (str, os.PathLike)) else list(places)
        opened = open_store(paths, capacity, driver, force)
        self._native = opened.native
        self.driver = opened.driver
        self._notes = opened.notes
        self.places = opened.places
        self.whole_pages = opened.whole_pages
        self.wants_map = opened.driver in ("vfio", "spdk")
        self._lba_bytes = opened.lba_bytes
        self._claims = [weakref.finalize(self, os.close, claim) for claim in opened.claims]
        self._naming = Naming(", ".join(self.places), self.driver)
        self._drive = Drive(opened.drive_nbytes)
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
            raise self._error(index, failure)
        return done

    def wait(self, index: int) -> None:
        """Until nothing of this blob is under way. Raises the TransferError it ended with."""
        with self._naming:
            failure = self._native.wait(index)
        if failure is not None:
            raise self._error(index, failure)

    def free(self, index: int) -> None:
        """Forget a blob, whatever is under way; its memory is the caller's again. IndexError if there is none."""
        with self._naming:
            self._native.free(index)

    def map(self, address: int, nbytes: int) -> None:
        """Have the devices reach this memory as it lies, until ``unmap`` or the store's end, where the driver can.

        For pinned host memory, and memory of another device that is mapped here (a GPU's, by its BAR): commands then
        go between the two devices with no host memory between. Drivers of the kernel pin it once, which makes commands
        cheaper. The memory must stay. TransferError with the reason where it cannot be mapped: transfers to and from
        host memory are possible all the same. ValueError for none, and for memory that is mapped already.
        """
        with self._naming:
            self._native.map(address, nbytes)

    def unmap(self, address: int) -> None:
        """Let go of memory that ``map`` was given, when all that uses it is done. ValueError for any other."""
        with self._naming:
            self._native.unmap(address)

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
        """The latest 65,536 commands sent while recording: direction, device, first LBA on it, length.

        In blocks of 4096 bytes, on devices of smaller ones too.
        """
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
        for claim in self._claims:
            claim()

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _error(self, index: int, failure: Failure) -> Exception:
        return transfer_error(self.driver, index, failure, self.places, self._lba_bytes)
