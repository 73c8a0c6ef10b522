"""The ranks of a process group that load together: they tell each other their errors, and compare what they load."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fastio.errors import FastIOError, ModelMismatchError, UnsupportedError, add_to_message, quoted, shortened

_SHOWN = 5  # differences in an error
Description = Mapping[str, object]
"""What a rank is about to load: by name, values whose ``repr`` tells them apart."""


class _Failure(NamedTuple):
    """An error on its way to other ranks."""

    error: Exception


class RankGroup:
    """The ranks of one collective load. Each rank makes the same calls in the same order.

    A rank that has an error says so in the next :meth:`agree`, and all ranks raise there. ``has_failed``: they have,
    or the group itself has, so that no further call would be answered.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        self.has_failed = False
        self._backends = dict(one.split(":") for one in dist.get_backend_config(group).split(","))
        kind = "cpu" if "cpu" in self._backends else next(iter(self._backends))
        self._device = torch.device(kind) if kind == "cpu" else torch.get_device_module(kind).current_device()

    def global_rank(self, rank: int) -> int:
        """The number that a rank of the group has among all ranks."""
        return dist.get_global_rank(self.group, rank)

    def backend(self, kind: str) -> str:
        """The name of the backend for that kind of memory. UnsupportedError if there is none."""
        if kind not in self._backends:
            known = ",".join(f"{device}:{backend}" for device, backend in self._backends.items())
            raise UnsupportedError(
                f"the process group has no backend for memory on {kind}, it has {known}: name one for each device in "
                f"init_process_group, such as backend='cpu:gloo,cuda:nccl', or load to {' or '.join(self._backends)}"
            )
        return self._backends[kind]

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """Inside, an error of any rank becomes one of all. At the end they wait for each other."""
        try:
            yield
        except Exception as error:
            if not self.has_failed:
                self.agree(error)
            raise
        self.agree()

    def agree(self, error: Exception | None = None, said: object = None) -> list[Any]:
        """Tell an error or an object, and return what each rank said, None for most.

        Where a rank has an error, that rank raises it, and the others one of the same class that names that rank.
        """
        answers: list[Any] = [None] * self.world
        is_silent = torch.tensor([error is None and said is None], dtype=torch.int32, device=self._device)
        with self.in_use():
            dist.all_reduce(is_silent, dist.ReduceOp.MIN, group=self.group)
            if is_silent.item():  # mostly: objects take several times as long
                return answers
            dist.all_gather_object(answers, said if error is None else _failure(error), group=self.group)
        failed = next((rank for rank, answer in enumerate(answers) if isinstance(answer, _Failure)), None)
        self.has_failed = failed is not None
        if failed is None:
            return answers
        if error is None:
            error = answers[failed].error
            said_by = f"rank {self.global_rank(failed)} raised this, and so do all ranks that load with it"
            add_to_message(error, f"; {said_by}")
        answers.clear()
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame

    def stop(self) -> None:
        """Tell the others that this rank takes no further part. It is no error if they stop, too."""
        with contextlib.suppress(FastIOError):
            self.agree(FastIOError("the tensors of a load of several ranks were not all taken"))

    def compare(self, description: Description) -> None:
        """ModelMismatchError on all ranks if one of them is about to load something else."""
        digest = hashlib.sha256(repr(list(description.items())).encode()).digest()
        digests = self.agree(said=digest)
        differing = next((rank for rank, other in enumerate(digests) if other != digests[0]), None)
        if differing is None:
            return
        answers = self.agree(said=description)
        self.has_failed = True
        one, other = (f"rank {self.global_rank(rank)}" for rank in (0, differing))
        problems = _differences(one, answers[0], other, answers[differing])
        more = [f"and {len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        said = "\n    ".join([*problems[:_SHOWN], *more])
        raise ModelMismatchError(
            f"ranks that load together must load the same, but {other} differs from {one}:\n    {said}\n"
            "Nothing was loaded. Give all ranks the same files, tensors and arguments, or load without group="
        )

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """Inside, an error is one of the group itself."""
        try:
            yield
        except BaseException:
            self.has_failed = True
            raise


def _failure(error: Exception) -> _Failure:
    """An error that other ranks can raise: a FastIOError with its text where it cannot be pickled."""
    try:
        return _Failure(pickle.loads(pickle.dumps(error)))
    except Exception:
        return _Failure(FastIOError(f"{type(error).__name__}: {error}"))


def _differences(one: str, first: Description, other: str, second: Description) -> list[str]:
    """What differs between two ranks, which are called ``one`` and ``other``."""
    problems = []
    for name in dict.fromkeys((*first, *second)):
        if name not in first or name not in second:
            problems.append(f"{shortened(name)}: only {one if name in first else other} has it")
        elif repr(first[name]) != repr(second[name]):
            problems.append(f"{shortened(name)}: {second[name]} there, {first[name]} on {one}")
    return problems or ["the order of the files or tensors"]


def rank_group(group: Any) -> RankGroup | None:
    """The ranks of a process group, or, for True, of the default one; None for None, or if there is but one rank.

    TypeError for what is no group, ValueError without a process group, or if this rank is not in it.
    """
    if group is None:
        return None
    is_group = dist.is_available() and (
        isinstance(group, dist.ProcessGroup) or group is dist.GroupMember.NON_GROUP_MEMBER
    )
    if group is not True and not is_group:
        raise TypeError(f"group={quoted(group)}: expected a process group, True for the default one, or None")
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"group={group!r}: there is no process group to load with; call init_process_group first")
    found: Any = dist.group.WORLD if group is True else group
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group=: this rank is not in that process group; call it on the ranks of the group only")
    return RankGroup(found) if dist.get_world_size(found) > 1 else None


def together(ranks: RankGroup | None) -> contextlib.AbstractContextManager[None]:
    """:meth:`RankGroup.together`, if there are ranks."""
    return contextlib.nullcontext() if ranks is None else ranks.together()
