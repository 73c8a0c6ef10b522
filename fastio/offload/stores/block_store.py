"""The block store: write once in sequence, read back in reverse, free (FlashNeuron, section 3.4).

Each blob has an index that the caller chooses. ``write`` and ``read`` queue commands and return. ``update`` submits
them to the device and reaps finished ones; no thread does so in the background. Nothing is kept after the process ends.

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

from fastio.arguments import Path
from fastio.errors import kind_of, quoted
from fastio.files.open_file import paths_of
from fastio.offload.stores.endurance import DriveWear
from fastio.offload.stores.store_errors import BLOCK, Failure, StoreGoneError, public_errors, transfer_error
from fastio.offload.stores.store_opening import open_store
from fastio.runtime.uncopied import Uncopied

__all__ = ["BLOCK", "BlockStore", "Direction", "StoreGoneError", "StoreStats"]

Direction = Literal["write", "read"]


@dataclass(frozen=True, slots=True)
class StoreStats(DriveWear):
    """Counts since the store was opened."""

    bytes_read: int
    bytes_bounced: int  # copied through aligned memory
    commands_written: int
    commands_read: int
    commands_under_way: int
    bytes_used: int
    bytes_provisioned: int
    retries: int  # commands sent again because NVMe reported a retryable error
    doorbells: int  # doorbell writes, by drivers that ring doorbells themselves
    system_calls: int  # system calls that move data, by the drivers uring and nvme


class BlockStore(Uncopied):
    """Blobs on unnamed files in folders, on empty files or on whole block devices; striped over several places.

    Other places: "nvme:/dev/ng0n1" is an NVMe namespace by the kernel's passthrough, "vfio:0000:03:00.0" a controller
    driven by this process, "spdk:trtype=TCP traddr=..." one driven by SPDK. ``driver`` names the driver instead of the
    prefix. Files and block devices have the drivers "uring" and "threads".

    ``capacity`` is in bytes over all places; 0 means all their space. Memory given by address must stay until its
    transfer is done or its index freed. Any thread may call any method; a thread that waits does not block the others.
    Memory that direct I/O cannot use directly (most tensors: they begin 64 bytes into a page) is copied on a write, by
    the thread that calls ``update``, ``is_done`` or ``wait``, through 4 MiB of memory that the store then keeps. If
    ``whole_pages`` is true, a caller can avoid the copy by transferring whole pages around its memory: the filesystem
    and the device allow other bytes there to change during the write. If ``wants_map`` is true (vfio, spdk), all memory
    not given to ``map`` is copied. A context manager.

    Raises FolderMissingError, TransferError, ValueError for an unknown driver or places of several drivers, and
    DeviceInUseError for a device that is in use, or that holds data and whose serial number is not ``force``. After
    ``close`` and in a forked child every method raises StoreGoneError. If io_uring is forbidden, the driver ``threads``
    replaces ``uring``, and :attr:`notes` say so.
    """

    def __init__(
        self,
        places: Path | Sequence[Path],
        capacity: int = 0,
        driver: Literal["uring", "threads", "nvme", "vfio", "spdk"] | None = None,
        force: str | None = None,
    ) -> None:
        if type(capacity) is not int or capacity < 0 or 0 < capacity < BLOCK:
            raise ValueError(f"capacity={capacity!r}: expected {BLOCK:,} bytes (a block) or more, or 0 for no limit")
        if not isinstance(force, str | None):
            raise TypeError(f"force={quoted(force)} is {kind_of(force)}: expected a device's serial number, or None")
        paths = paths_of("places", places, "a folder, an empty file or a device, or a list of them")
        self._native, self.driver, opened, self._notes = open_store(paths, capacity, driver, force)
        self.places = tuple(place.path for place in opened)
        self.whole_pages = all(place.tolerates_changes for place in opened)
        self.wants_map = self.driver in ("vfio", "spdk")
        self._direct = all(place.direct for place in opened)
        self._lba_bytes = [place.lba_bytes for place in opened]
        self._claims = [weakref.finalize(self, os.close, place.claim) for place in opened if place.claim >= 0]
        self._public_errors = public_errors(", ".join(self.places), self.driver)
        self._drive_nbytes = sum({place.drive: place.drive_nbytes for place in opened}.values())
        self._opened = time.monotonic()
        self._recording = False
        self._is_closed = False

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Queue the write of a new blob. ValueError if the index is taken, TransferError (ENOSPC) if space is short."""
        self.issue(index, address, nbytes, "write")

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Queue the read of a blob's first ``nbytes``, after its write if that is pending.

        IndexError if there is no such blob, ValueError if it is shorter. A failed read may be retried.
        """
        self.issue(index, address, nbytes, "read")

    def issue(self, index: int, address: int, nbytes: int, direction: Direction) -> None:
        """Queue a transfer; the paper's ``P2PDSA_issue``."""
        if direction not in ("write", "read"):
            raise ValueError(f"expected the direction 'write' or 'read', got {direction!r}")
        with self._public_errors:
            self._native.issue(index, address, nbytes, direction == "write")

    def update(self) -> int:
        """Submit queued commands and reap finished ones; return how many are still pending."""
        with self._public_errors:
            return self._native.update()

    def is_done(self, index: int) -> bool:
        """Return whether the blob has no pending command; may update. Raises its command's TransferError."""
        with self._public_errors:
            done, failure = self._native.is_done(index)
        if failure is not None:
            raise self._error(index, failure)
        return done

    def finished(self, indices: Sequence[int]) -> list[int]:
        """Update; return those of the indices without a pending command, failed ones and unknown ones too."""
        with self._public_errors:
            return self._native.finished(indices)

    def wait(self, index: int) -> None:
        """Wait until the blob has no pending command. Raises its command's TransferError."""
        with self._public_errors:
            failure = self._native.wait(index)
        if failure is not None:
            raise self._error(index, failure)

    def free(self, index: int) -> None:
        """Free a blob, pending or not; the caller may then reuse its memory. IndexError if there is none."""
        with self._public_errors:
            self._native.free(index)

    def map(self, address: int, nbytes: int) -> None:
        """Let the devices access this memory directly, until ``unmap`` or ``close``, if the driver can.

        For pinned host memory, and for memory of another device that is mapped here (a GPU's, through its BAR): data
        then goes between the two devices without host memory. Kernel drivers pin the memory once, which makes commands
        cheaper. The memory must stay. TransferError with the reason if it cannot be mapped; transfers of host memory
        still work. ValueError for no bytes, and for memory that is already mapped.
        """
        with self._public_errors:
            self._native.map(address, nbytes)

    def unmap(self, address: int) -> None:
        """Unmap memory that ``map`` was given, once its transfers are done. ValueError for other memory."""
        with self._public_errors:
            self._native.unmap(address)

    @property
    def peer_refusal(self) -> str:
        """Why no memory of another device can be given to ``map``, and the cure; empty if that may be tried."""
        if self.driver == "threads":
            return "the driver 'threads' moves bytes by the processor: name the disk by vfio: or spdk:"
        if not self._direct:
            return "the filesystem has no direct I/O: use another, or a whole disk by vfio: or spdk:"
        return ""

    def __contains__(self, index: int) -> bool:
        with self._public_errors:
            return self._native.contains(index)

    @property
    def notes(self) -> tuple[str, ...]:
        """What does not go the usual way, and why. Notes on unaligned memory appear once some was transferred."""
        return (*self._notes, *self._native.notes())

    @property
    def recording(self) -> bool:
        """Whether commands are added to the trace. Setting it starts a new trace."""
        return self._recording

    @recording.setter
    def recording(self, recording: bool) -> None:
        self._native.set_recording(recording)
        self._recording = recording

    @property
    def trace(self) -> list[tuple[Direction, int, int, int]]:
        """The latest 65,536 commands sent while recording: direction, device, first LBA on it, length.

        In blocks of 4096 bytes, also on devices with smaller ones.
        """
        return [
            ("write" if write else "read", device, lba, blocks) for write, device, lba, blocks in self._native.trace()
        ]

    @property
    def stats(self) -> StoreStats:
        """Counts of transfers, and the resulting wear of the drive. Works on a closed store."""
        with self._public_errors:
            counts = self._native.stats()
        return StoreStats(**counts, seconds=time.monotonic() - self._opened, drive_nbytes=self._drive_nbytes)

    def close(self) -> None:
        """Drop queued commands, wait for the device and free the space. May be called twice."""
        with self._public_errors:
            self._native.close()
        self._is_closed = True
        for claim in self._claims:
            claim()

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "open"
        return f"<fastio BlockStore in {', '.join(self.places)}: driver {self.driver}, {state}>"

    def __enter__(self) -> BlockStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _error(self, index: int, failure: Failure) -> Exception:
        return transfer_error(self.driver, index, failure, self.places, self._lba_bytes)
