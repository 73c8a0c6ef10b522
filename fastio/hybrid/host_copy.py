"""The host copy of a model, its gradients and its optimizer's state: a process's own, or one of several ranks."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn import Module
from torch.optim import Optimizer

from fastio.errors import kind_of
from fastio.hybrid import requirements
from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_copies import fingerprint
from fastio.hybrid.memory.layers import Slot
from fastio.hybrid.memory.ranks import OneRank, Ranks, SharingRanks
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer
from fastio.hybrid.optimizer.shared_states import SharedStates
from fastio.hybrid.optimizer.update_states import HostStates, States


class HostCopy(Protocol):
    """Whose the host copy is. ``is_shared``: other processes write to it, too."""

    is_shared: bool

    @property
    def ranks(self) -> Ranks:
        """The ranks that have it."""

    def check(self, model: Module, optimizer: Optimizer, gradient_reserve: float, optimizer_store: object) -> None:
        """Raise HybridError for what cannot be trained with it."""

    def states(self, optimizer: Optimizer, cpu_optimizer: CpuOptimizer, gradients: Sequence[Gradient]) -> States:
        """Return what keeps the optimizer's state in it."""

    def to_compare(self, slots: Iterable[Slot]) -> dict[str, int]:
        """Return what of these parameters' gradients must be the same on all ranks."""

    def releaser(
        self, owner: object, slots: dict[torch.Tensor, Slot], flat_buffer: FlatBuffer, states: States
    ) -> Callable[[], object]:
        """Return what releases the states and the parameters; if need be, the end of ``owner`` calls it, too."""


class OwnCopy:
    """A copy of this process alone."""

    is_shared = False

    def __init__(self) -> None:
        self.ranks = OneRank()

    def check(self, model: Module, optimizer: Optimizer, gradient_reserve: float, optimizer_store: object) -> None:
        """See :class:`HostCopy`."""

    def states(self, optimizer: Optimizer, cpu_optimizer: CpuOptimizer, gradients: Sequence[Gradient]) -> States:
        """See :class:`HostCopy`."""
        return HostStates(optimizer, cpu_optimizer, gradients)

    def to_compare(self, slots: Iterable[Slot]) -> dict[str, int]:
        """See :class:`HostCopy`."""
        return {}

    def releaser(
        self, owner: object, slots: dict[torch.Tensor, Slot], flat_buffer: FlatBuffer, states: States
    ) -> Callable[[], object]:
        """See :class:`HostCopy`. The parameters stay where they are."""
        return states.close


class SharedCopy:
    """A copy that the ranks of a group share, one process each."""

    is_shared = True

    def __init__(self, group: Any) -> None:
        self.ranks = SharingRanks(group)

    def check(self, model: Module, optimizer: Optimizer, gradient_reserve: float, optimizer_store: object) -> None:
        """See :class:`HostCopy`."""
        requirements.check_shared(gradient_reserve, optimizer_store)
        requirements.check_all_updated(model, optimizer)
        requirements.check_written_in_forward(model)

    def states(self, optimizer: Optimizer, cpu_optimizer: CpuOptimizer, gradients: Sequence[Gradient]) -> States:
        """See :class:`HostCopy`."""
        return SharedStates(optimizer, cpu_optimizer, gradients, self.ranks)

    def to_compare(self, slots: Iterable[Slot]) -> dict[str, int]:
        """See :class:`HostCopy`."""
        return {
            f"the gradient of {slot.name}, a sum of its bits": int(fingerprint(slot.parameter.grad).sum())
            for slot in slots
            if slot.parameter.grad is not None
        }

    def releaser(
        self, owner: object, slots: dict[torch.Tensor, Slot], flat_buffer: FlatBuffer, states: States
    ) -> Callable[[], object]:
        """See :class:`HostCopy`.

        Also if the owner is garbage: another optimizer's step would update what is shared once on each rank.
        """
        release = weakref.finalize(owner, _unshare, slots, flat_buffer, states)
        release.atexit = False
        return release


def host_copy_for(group: Any) -> HostCopy:
    """Return a copy that the ranks of ``group`` share, if it has several.

    Raises TypeError, and HybridError for a group that cannot exchange CPU tensors or that this process is not in.
    """
    if group is None:
        return OwnCopy()
    if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
        raise TypeError(f"process_group is {kind_of(group)}: expected a torch.distributed process group")
    if dist.get_rank(group) < 0:
        raise HybridError(
            f"this process (rank {dist.get_rank()}) is not in process_group: give the group of this machine's ranks"
        )
    devices = sorted(device.type for device in group._device_types)
    if "cpu" not in devices:
        raise HybridError(
            f"process_group exchanges tensors of {', '.join(devices)} only, and ranks wait for each other by CPU "
            f'tensors: init_process_group("cpu:gloo,cuda:nccl"), or a group of backend "gloo"'
        )
    return SharedCopy(group) if dist.get_world_size(group) > 1 else OwnCopy()


def _unshare(slots: dict[torch.Tensor, Slot], flat_buffer: FlatBuffer, states: States) -> None:
    """Give this process copies of its own of the parameters and of the optimizer's state."""
    states.close()
    own = flat_buffer.own_copy()
    for slot in slots.values():
        if slot.parameter.data_ptr() == slot.address:  # not if it was replaced
            slot.parameter.data = own.device_view(slot.offset, slot.host)
