"""The tiers of a manager: host memory and the disk, for each type of device that tensors are on."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from fastio import devices
from fastio.offload.autograd.trace import DISK, HOST
from fastio.offload.report import Counts
from fastio.offload.stores.copies import Copies, DeviceCopies, HostCopies
from fastio.offload.stores.host_store import HostStore
from fastio.offload.stores.staged_store import StagedStore
from fastio.offload.stores.tiers import Store, Tier

_WINDOWS_PER_SLAB = 2  # one window for writes, one for reads


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
        self._window = 0
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
                self._hosts[kind] = Tier(HOST, store, self._counts, self._window), store
            host, memory = self._hosts[kind]
            if memory.room(nbytes + host.queued_bytes):
                return host
        if kind not in self._disks:
            self._disks[kind] = Tier(DISK, self._store_for(kind), self._counts, self._window)
        return self._disks[kind]

    def set_window(self, window: int) -> None:
        """Begin a pass in which ``window`` bytes of live tensors may wait for their write, in each tier."""
        self._window = window
        for staged in self._staged:
            staged.reserve(_WINDOWS_PER_SLAB * window)
        for tier in self:
            tier.begin_pass(window)

    def pump(self, needed: Collection[int] = ()) -> None:
        """See :meth:`Tier.pump`."""
        for tier in self:
            tier.pump(needed)

    def close(self) -> None:
        """Wait for pending transfers, free the memory, and close the store if it was opened for this manager."""
        for tier in self:
            tier.drain()
        for staged in self._staged:
            staged.close()
        for _, memory in self._hosts.values():
            memory.close()
        if self._owned:
            self.store.close()

    def __iter__(self) -> Iterator[Tier]:
        yield from (tier for tier, _ in self._hosts.values())
        yield from self._disks.values()

    def _store_for(self, kind: str) -> Store:
        if kind == "cpu":
            return self.store
        staged = StagedStore(self.store, _copies(kind), _WINDOWS_PER_SLAB * self._window)
        self._staged.append(staged)
        return staged


def _copies(kind: str) -> Copies:
    return HostCopies() if kind == "cpu" else DeviceCopies(devices.of(kind))
