"""The ranks of a machine that share one host copy of parameters, gradients and optimizer state.

MemFerry on several GPUs (section V-D).
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
import torch.distributed as dist

from fastio.devices import Accelerator
from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.shared_memory import SharedMemory, memory_file, open_memory_file
from fastio.memory.staging_buffers import HostMemory

_SAME_MACHINE = (
    "process_group must have ranks of one machine only: make a group for each (torch.distributed.new_subgroups())"
)


class Ranks(Protocol):
    """The ranks that have this process's host copy, by ``index``. All of them must make the same calls."""

    index: int

    def together(self, what: str, cure: str = "") -> AbstractContextManager[dict[str, Any]]:
        """Do something on all ranks, and wait for all of them at its end. If it fails on one, all raise.

        They raise HybridError, which names what differs and says ``cure``, too if the values that they put into the
        dictionary (numbers and text) are not the same.
        """

    def memory(self, nbytes: int, pin_for: Accelerator | None) -> HostMemory | SharedMemory:
        """Return zeroed memory that all of them have. RefusedError or HybridError if they cannot."""


class OneRank:
    """A rank alone."""

    index = 0

    @contextlib.contextmanager
    def together(self, what: str, cure: str = "") -> Iterator[dict[str, Any]]:
        """See :class:`Ranks`."""
        yield {}

    def memory(self, nbytes: int, pin_for: Accelerator | None) -> HostMemory:
        """See :class:`Ranks`.

        All tensors that a user reaches are device tensors if it is pinned, which no forked process can read. Otherwise
        they are CPU tensors, which DataLoader workers may read.
        """
        return HostMemory(nbytes, pin_for, inherited=pin_for is None)


class SharingRanks:
    """This process among ``count`` ranks of a group, which share memory.

    They wait for each other for at most the time limit of the group, over connections of their own: other calls on the
    group (DistributedDataParallel's) are not mixed up with these.
    """

    def __init__(self, group: Any) -> None:
        self.index, self.count = dist.get_rank(group), dist.get_world_size(group)
        self._own = _connect(group, self.index, self.count)

    @contextlib.contextmanager
    def together(self, what: str, cure: str = "") -> Iterator[dict[str, Any]]:
        """See :class:`Ranks`."""
        values: dict[str, Any] = {}
        try:
            yield values
        except BaseException:
            with contextlib.suppress(HybridError):
                self._most(what, [1, 0, 0])
            raise
        text = json.dumps(list(values.items())).encode()
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
        failed, most, least = self._most(what, [0, digest, -digest])
        if failed:
            raise HybridError(f"{what} failed on another rank, whose error says why")
        if most != -least:
            raise HybridError(f"ranks that share memory differ in {_difference(self._all(what, values))}: {cure}")

    def memory(self, nbytes: int, pin_for: Accelerator | None) -> SharedMemory:
        """See :class:`Ranks`."""
        fd, token = -1, uuid.uuid4().hex
        try:
            with self.together("making shared memory", "make the same model and optimizer on every rank") as values:
                values["the bytes to share"] = nbytes
                if self.index == 0:
                    fd = memory_file(nbytes, token)
            told = self._all("making shared memory", [os.getpid(), fd, token])[0]
            with self.together(f"sharing memory ({_SAME_MACHINE})"):
                if self.index:
                    fd = open_memory_file(*told)
                return SharedMemory(fd, pin_for)
        finally:
            if fd >= 0:
                os.close(fd)

    def _most(self, what: str, numbers: list[int]) -> list[int]:
        """Return the largest of the ranks' numbers, one by one."""
        found = torch.tensor(numbers, device="cpu")
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        with _told(what):
            self._own.allreduce([found], options).wait()
        most: list[int] = found.tolist()
        return most

    def _all(self, what: str, value: Any) -> list[Any]:
        """Return every rank's value."""
        text = json.dumps(value).encode()
        (longest,) = self._most(what, [len(text)])
        mine = torch.tensor(list(text.ljust(longest)), dtype=torch.uint8, device="cpu")
        found = [torch.empty_like(mine) for _ in range(self.count)]
        with _told(what):
            self._own.allgather([found], [mine]).wait()
        return [json.loads(bytes(one.tolist())) for one in found]


def _connect(group: Any, index: int, count: int) -> Any:
    """Connect the ranks of a group anew, with the time limit of the group."""
    token = [uuid.uuid4().hex]
    dist.broadcast_object_list(token, src=dist.get_global_rank(group, 0), group=group, device=torch.device("cpu"))
    settings = getattr(group._get_backend(torch.device("cpu")), "options", None)
    limit: datetime.timedelta = getattr(settings, "_timeout", dist.distributed_c10d.default_pg_timeout)
    store = dist.distributed_c10d.PrefixStore(f"fastio-hybrid-{token[0]}", dist.distributed_c10d._get_default_store())
    return dist.ProcessGroupGloo(store, index, count, limit)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise HybridError(
            f"{what}: another rank has ended, or was silent for longer than the process group's time limit: {error}"
        ) from error


def _difference(values: list[dict[str, Any]]) -> str:
    """Say what is not the same in all of these."""
    for name in dict.fromkeys(name for one in values for name in one):
        found = [one.get(name, "nothing") for one in values]
        if any(json.dumps(one) != json.dumps(found[0]) for one in found):
            return f"{name} ({', '.join(f'rank {rank}: {one}' for rank, one in enumerate(found))})"
    return "the order of parameters"
