"""The ranks of a machine that share one host copy of parameters, gradients and optimizer state."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from fastio.devices import Accelerator
from fastio.errors import kind_of
from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.shared_memory import SharedMemory, memory_file, open_memory_file

_SAME_MACHINE = (
    "process_group must have ranks of one machine only: make a group for each (torch.distributed.new_subgroups())"
)


class Ranks:
    """This process's ``index`` among ``count`` ranks of ``group``; without a group it is alone.

    All ranks must make the same calls. They wait for each other for at most the time limit of the group. Raises
    TypeError, and HybridError for a group that cannot exchange CPU tensors or that this process is not in.
    """

    def __init__(self, group: Any = None) -> None:
        self._group = group
        self.index, self.count = 0, 1
        if group is None:
            return
        if not dist.is_available() or not isinstance(group, dist.ProcessGroup):
            raise TypeError(f"process_group is {kind_of(group)}: expected a torch.distributed process group")
        self.index, self.count = dist.get_rank(group), dist.get_world_size(group)
        if self.index < 0:
            raise HybridError("this process is not in process_group: give the group of this machine's ranks")
        if torch.device("cpu") not in group._device_types:
            raise HybridError(
                "process_group cannot exchange CPU tensors, by which ranks wait for each other: "
                'init_process_group("cpu:gloo,cuda:nccl"), or a group of backend "gloo"'
            )

    @contextlib.contextmanager
    def together(self, what: str, differ: str = "") -> Iterator[list[int]]:
        """Do something on all ranks, and wait for all of them at its end. If it fails on one, all raise.

        They raise HybridError, which says ``differ``, too if the numbers that they put into the list are not the same.
        """
        numbers: list[int] = []
        if self.count == 1:
            yield numbers
            return
        try:
            yield numbers
        except BaseException:
            with contextlib.suppress(HybridError):
                self._most(what, [1, 0, 0])
            raise
        digest = hash(tuple(numbers)) >> 2  # of integers: the same in every process
        failed, most, least = self._most(what, [0, digest, -digest])
        if failed:
            raise HybridError(f"{what} failed on another rank, whose error says why")
        if most != -least:
            raise HybridError(differ)

    def share(self, nbytes: int, pin_for: Accelerator | None) -> SharedMemory:
        """Return zeroed memory that all ranks share. RefusedError or HybridError if they cannot."""
        fd, token = -1, uuid.uuid4().hex
        try:
            with self.together("making shared memory", "the models or optimizers of the ranks differ") as numbers:
                numbers.append(nbytes)
                if self.index == 0:
                    fd = memory_file(nbytes, token)
            told: list[Any] = [(os.getpid(), fd, token)]
            dist.broadcast_object_list(told, src=dist.get_global_rank(self._group, 0), group=self._group)
            with self.together(f"sharing memory ({_SAME_MACHINE})"):
                if self.index:
                    fd = open_memory_file(*told[0])
                return SharedMemory(fd, pin_for)
        finally:
            if fd >= 0:
                os.close(fd)

    def _most(self, what: str, numbers: list[int]) -> list[int]:
        """Return the largest of the ranks' numbers, one by one."""
        found = torch.tensor(numbers, device="cpu")
        try:
            dist.all_reduce(found, dist.ReduceOp.MAX, self._group)
        except RuntimeError as error:
            raise HybridError(
                f"{what}: another rank has ended, or was silent for longer than the process group's time limit: {error}"
            ) from error
        most: list[int] = found.tolist()
        return most
