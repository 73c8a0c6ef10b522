"""The tiers of a manager: host memory and the disk, for each type of device that tensors are on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from fastio import devices
from fastio.offload.autograd.saved_tensor import HoldingTier, SavedTensor, State
from fastio.offload.autograd.trace import DISK, HOST
from fastio.offload.report import Counts
from fastio.offload.stores.copies import Copies, DeviceCopies, HostCopies
from fastio.offload.stores.host_store import HostStore
from fastio.offload.stores.loaded import Loaded
from fastio.offload.stores.staged_store import StagedStore
from fastio.offload.stores.tiers import Store, Tier


class TierSet:
    """Makes tiers when tensors of a device type first appear.

    Tensors on the CPU go to the store directly, those on a GPU through pinned memory. Each device type has
    ``host_budget`` bytes of host memory of its own.
    """

    def __init__(self, store: Store, owned: bool, host_budget: int, counts: Counts) -> None:
        self.store = store
        self._owned = owned
        self._host_budget = host_budget
        self._counts = counts
        self.loaded = Loaded()
        self._window = self._transit = 0
        self._disks: dict[str, Tier] = {}
        self._hosts: dict[str, tuple[Tier, HostStore]] = {}
        self._staged: list[StagedStore] = []

    def choose(self, device: torch.device, nbytes: int, tier: str) -> Tier:
        """Return the tier of that name for a tensor on ``device``; "" for host memory if it has room now.

        Returns the disk tier if host memory has no room.
        """
        kind = device.type
        if tier != DISK and self._host_budget > 0:
            if kind not in self._hosts:
                store = HostStore(self._host_budget, _copies(kind))
                self._hosts[kind] = Tier(HOST, store, self._counts, self.loaded, self._window), store
            host, memory = self._hosts[kind]
            if memory.room(nbytes + host.queued_bytes):
                return host
        if kind not in self._disks:
            self._disks[kind] = Tier(DISK, self._store_for(kind), self._counts, self.loaded, self._window)
        return self._disks[kind]

    def begin_pass(self, window: int, transit: int) -> None:
        """Begin a pass in which ``window`` bytes may wait for their write, and ``transit`` be written and read."""
        self._window, self._transit = window, transit
        self.loaded.recount()
        for staged in self._staged:
            staged.reserve(transit)
        for tier in self:
            tier.begin_pass(window)

    def move_out(self, tier: Tier, saved: SavedTensor, limit: int) -> None:
        """Begin to move a tensor out. Then wait, and unload what was written, until both have at most ``limit`` bytes.

        All tiers count together, but only the writes of this one are waited for.
        """
        elsewhere = self.waiting_bytes - tier.waiting_bytes
        tier.move_out(saved, max(0, limit - elsewhere))
        self._unload(self.waiting_bytes + self.loaded.nbytes - limit)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of live tensors whose write has not ended."""
        return sum(tier.waiting_bytes for tier in self)

    def pump(self, needed: Collection[int] | None = None) -> None:
        """See :meth:`Tier.pump`."""
        for tier in self:
            tier.pump(needed)

    def close(self) -> None:
        """Wait for pending transfers, free the memory, and close the store if it was opened for this manager."""
        for tier in self:
            tier.drain()
        self._unload(self.loaded.nbytes)
        for staged in self._staged:
            staged.close()
        for _, memory in self._hosts.values():
            memory.close()
        if self._owned:
            self.store.close()

    def _unload(self, nbytes: int) -> None:
        """Unload at least ``nbytes``, if there are so many, of the tensors that were loaded first."""
        for saved in self.loaded:
            if nbytes <= 0:
                break
            if saved.state is State.RESIDENT:
                nbytes -= saved.nbytes
                tier_of(saved).unload(saved)

    def __iter__(self) -> Iterator[Tier]:
        yield from (tier for tier, _ in self._hosts.values())
        yield from self._disks.values()

    def _store_for(self, kind: str) -> Store:
        if kind == "cpu":
            return self.store
        staged = StagedStore(self.store, _copies(kind), self._transit)
        self._staged.append(staged)
        return staged


def tier_of(saved: SavedTensor) -> HoldingTier:
    """Return the tier that a saved tensor moved to."""
    assert saved.tier is not None, "bytes that are not in memory are in a tier"
    return saved.tier


def _copies(kind: str) -> Copies:
    return HostCopies() if kind == "cpu" else DeviceCopies(devices.of(kind))
