"""The tiers of a manager: host memory and the disk, for each kind of device that tensors lie on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from fastio.offload.autograd.trace import DISK, HOST
from fastio.offload.report import Counts
from fastio.offload.stores.copies import Copies, CudaCopies, HostCopies
from fastio.offload.stores.host_store import HostStore
from fastio.offload.stores.staged_store import StagedStore
from fastio.offload.stores.tiers import Store, Tier

_SLAB = 2  # windows that a slab of pinned memory holds: what is being written, and what is being read


class TierSet:
    """Made as tensors of a kind of device turn up: tensors on the CPU go to the store as they lie, those of a GPU
    through pinned memory. Each kind has ``host_budget`` bytes of host memory of its own.
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
        """The tier of that name for a blob on a device, "" for host memory where it has room now.

        The disk's where host memory has no room.
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
            self._disks[kind] = Tier(DISK, self._reaching(kind), self._counts, self._window)
        return self._disks[kind]

    def set_window(self, window: int) -> None:
        """Bytes of live blobs that may wait for their write, in each tier."""
        self._window = window
        for tier in self:
            tier.begin(window)

    def pump(self) -> None:
        """See :meth:`Tier.pump`."""
        for tier in self:
            tier.pump()

    def close(self) -> None:
        """Wait for what is under way, give memory back, and the store where it was opened for this manager."""
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

    def _reaching(self, kind: str) -> Store:
        if kind == "cpu":
            return self.store
        staged = StagedStore(self.store, _copies(kind), _SLAB * self._window)
        self._staged.append(staged)
        return staged


def _copies(kind: str) -> Copies:
    return HostCopies() if kind == "cpu" else CudaCopies()
