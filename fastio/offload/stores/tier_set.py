"""The tiers of a manager: host memory and the disk, for each device that tensors are on."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from fastio import devices
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.trace import DISK, HOST
from fastio.offload.recompute.tier import RecomputeTier
from fastio.offload.report import Counts
from fastio.offload.stores.copies import DeviceCopies
from fastio.offload.stores.disk_tier import DiskTier
from fastio.offload.stores.host_tier import HostTier
from fastio.offload.stores.peer_slab import Route, open_peer_slab
from fastio.offload.stores.slab import Slab, Staging, pinned_memory
from fastio.offload.stores.tiers import Loaded, Store

_PEER_SHARE = 32  # at most this part of a device's memory is a slab for its disks, beyond the budget


class TierSet:
    """Makes tiers when tensors of a device type first appear.

    Tensors on the CPU go to the store directly, those on a GPU through a slab of its own memory if the store's disks
    reach that, else through pinned memory; ``counts.routes`` says which, and why. Each device type has ``host_budget``
    bytes of host memory of its own.
    """

    def __init__(self, store: Store, owned: bool, host_budget: int, counts: Counts) -> None:
        self.store = store
        self._owned = owned
        self._host_budget = host_budget
        self._counts = counts
        self.loaded = Loaded()
        self.is_closed = False
        self._process = os.getpid()
        self._window = self._transit = 0
        self.disks: dict[str, DiskTier] = {}
        self._hosts: dict[devices.Accelerator | None, HostTier] = {}
        self._slab_limits: dict[str, int] = {}  # by device: the most bytes of a slab in its memory

    def begin_pass(self, window: int, transit: int, is_idle: bool) -> None:
        """Begin a pass in which ``window`` bytes may wait for their write, and ``transit`` be written and read.

        ``is_idle``: no saved tensor is alive.
        """
        self._window, self._transit = window, transit
        self.loaded.recount()
        for disk in self.disks.values():
            disk.begin_pass(window, transit)
        for host in self._hosts.values():
            host.begin_pass(is_idle)

    def move_out(self, several: Sequence[SavedTensor], where: str, limit: int, waits: bool) -> str:
        """Begin to move tensors out, to the tier ``where``; "" for host memory. Return the name of the last one's tier.

        Nothing was computed between them. They go to the disk if host memory has no room. Then wait, and unload what
        was written, until both have at most ``limit`` bytes. All tiers count together, but only the writes of one are
        waited for.
        """
        first, name, moved = several[0], HOST, 0
        limit = 0 if waits else limit
        if where != DISK and self._host_budget > 0 and not first.step.refused:
            moved = self._host(first.accelerator).move_out(several, waits)
        for saved in several[moved:] if moved else several:
            if not saved.step.refused:
                name = DISK
                saved.tier = disk = self._disk(saved)
                disk.move_out(saved, max(0, limit - self.waiting_bytes + disk.waiting_bytes))
                self._unload_beyond(limit)
        self._unload_beyond(limit)
        return name

    def _unload_beyond(self, limit: int) -> None:
        excess = self.loaded.nbytes - limit + (self.waiting_bytes if self.disks else 0)
        if excess > 0:
            self._unload(excess)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of live tensors whose write has not ended."""
        nbytes = 0
        for disk in self.disks.values():
            nbytes += disk.waiting_bytes
        return nbytes

    @property
    def released_bytes(self) -> int:
        """Bytes in memory of tensors that graphs have released, and that transfers still use."""
        return sum(disk.released_bytes for disk in self.disks.values())

    def waiting(self) -> Iterator[SavedTensor]:
        """The saved tensors whose write has not ended."""
        return itertools.chain.from_iterable(disk.waiting() for disk in self.disks.values())

    def pump(self, needed: Collection[int] | None = None) -> None:
        for disk in self.disks.values():
            disk.pump(needed)

    def unload_all(self) -> None:
        """Wait for pending transfers, and unload every tensor that is in memory and in a store."""
        for disk in self.disks.values():
            disk.drain()
        for saved in self.loaded:
            if saved.state is State.INFLIGHT and isinstance(saved.tier, DiskTier | HostTier):
                saved.tier.abandon(saved)
        self._unload(self.loaded.nbytes)

    def close(self) -> None:
        """Wait for pending transfers, free the memory, and close the store if it was opened for this manager.

        In a forked process they are the parent's.
        """
        if os.getpid() != self._process:
            return
        self.unload_all()
        for disk in self.disks.values():
            disk.close()
        for host in self._hosts.values():
            host.close()
        if self._owned:
            self.store.close()
        self.is_closed = True

    def _unload(self, nbytes: int) -> None:
        """Unload at least ``nbytes``, if there are so many, of the tensors that were loaded first."""
        oldest: list[SavedTensor] = []
        for saved in self.loaded.tensors.values():
            if nbytes <= 0:
                break
            if saved.state is State.RESIDENT:
                nbytes -= saved.nbytes
                oldest.append(saved)
        for saved in oldest:
            if saved.tier is not None:
                saved.tier.unload(saved)

    def _host(self, accelerator: devices.Accelerator | None) -> HostTier:
        host = self._hosts.get(accelerator)
        if host is None:
            # A disk that is reached through host memory needs the same copies, so it is never the faster one.
            other_way = getattr(self.store, "takes_devices", False) or not getattr(self.store, "peer_refusal", "none")
            host = HostTier(self._host_budget, accelerator, self._counts, self.loaded, other_way)
            self._hosts[accelerator] = host
        return host

    def _disk(self, saved: SavedTensor) -> DiskTier:
        name = str(saved.device)
        if saved.stored_nbytes > self._slab_limits.get(name, sys.maxsize):
            name += ", what is larger than its slab"
        disk = self.disks.get(name)
        if disk is None:
            store, staging = self._way(saved, name)
            disk = self.disks[name] = DiskTier(store, self._counts, self.loaded, self._window, staging)
        return disk

    def _way(self, saved: SavedTensor, name: str) -> tuple[Any, Staging | None]:
        """Return the store for tensors of a device, and what stages them."""
        accelerator = saved.accelerator
        if accelerator is None:
            return self.store, None
        if getattr(self.store, "takes_devices", False):
            self._counts.routes[name] = Route("tools", "each by the tool that is chosen for its size")
            return _on_device(self.store, saved.device), None
        limit = accelerator.memory_limit(saved.device)
        most = sys.maxsize if limit is None else limit // _PEER_SHARE
        nbytes = max(min(self._transit, most), saved.stored_nbytes)
        slab, route = open_peer_slab(nbytes, most, self.store, accelerator, saved.device)
        self._counts.routes[name] = route
        if slab is not None:
            self._slab_limits[name] = most
        copies = DeviceCopies(accelerator, saved.device, within=slab is not None)
        slab = slab or Slab(self._transit, partial(pinned_memory, self.store, accelerator))
        return self.store, Staging(copies, slab, self._slab_limits.get(name, sys.maxsize))


def _on_device(store: Any, device: torch.device) -> Any:
    """Return a :class:`Store` for the memory of one device, of one that takes several."""
    names = ("update", "finished", "is_done", "wait", "free", "close")
    write, read = partial(store.write, device=device), partial(store.read, device=device)
    return SimpleNamespace(write=write, read=read, **{name: getattr(store, name) for name in names})


def tier_of(saved: SavedTensor) -> DiskTier | HostTier | RecomputeTier:
    """Return the tier that a saved tensor moved to."""
    assert saved.tier is not None, "bytes that are not in memory are in a tier"
    return saved.tier
