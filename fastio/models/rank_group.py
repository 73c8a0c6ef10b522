"""The ranks of a process group that load together: they tell each other their errors, and compare what they load."""

from __future__ import annotations

import contextlib
import hashlib
import pickle
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from fastio.errors import FastIOError, ModelMismatchError, UnsupportedError, add_to_message, quoted

_SHOWN = 5  # differences in an error
Description = Mapping[str, Mapping[str, object]]
"""What a rank is about to load: by heading and name, values whose ``repr`` tells them apart."""


class _Failure(NamedTuple):
    """An error on its way to other ranks: pickled, and as text for those that cannot unpickle it."""

    pickled: bytes
    text: str


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

    def agree(self, error: Exception | None = None, said: object = None) -> list[object]:
        """Tell an error or an object, and return what each rank said, None for most.

        Where a rank has an error, that rank raises it, and the others one of the same class that names that rank.
        """
        with self.in_use():
            if not any(code for code, _ in self._gather(int(error is not None or said is not None), 0)):
                return [None] * self.world
            answers = self._gather_objects(said if error is None else _packed(error))
        failures = {rank: answer for rank, answer in enumerate(answers) if isinstance(answer, _Failure)}
        self.has_failed = bool(failures)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback refers to this frame
        for rank, failure in failures.items():
            raise self._unpacked(rank, failure)
        return answers

    def stop(self) -> None:
        """Tell the others that this rank takes no further part. It is no error if they stop, too."""
        with contextlib.suppress(FastIOError):
            self.agree(FastIOError("the tensors of a load of several ranks were not all taken"))

    def compare(self, description: Description) -> None:
        """ModelMismatchError on all ranks if one of them is about to load something else."""
        digest = hashlib.sha256(repr([(key, list(values.items())) for key, values in description.items()]).encode())
        with self.in_use():
            found = self._gather(0, int.from_bytes(digest.digest()[:7], "big"))
            if any(code for code, _ in found):  # another rank has an error
                answers = self._gather_objects(None)
            elif len({value for _, value in found}) > 1:
                answers = self._gather_objects(description)
            else:
                return
        self.has_failed = True
        for rank, answer in enumerate(answers):
            if isinstance(answer, _Failure):
                raise self._unpacked(rank, answer)
        differing = next(rank for rank, answer in enumerate(answers) if found[rank] != found[0])
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

    def _gather(self, code: int, value: int) -> list[tuple[int, int]]:
        own = torch.tensor([code, value], dtype=torch.int64, device=self._device)
        found = [torch.empty_like(own) for _ in range(self.world)]
        dist.all_gather(found, own, group=self.group)
        return [(int(one[0]), int(one[1])) for one in found]

    def _gather_objects(self, own: object) -> list[Any]:
        found: list[Any] = [None] * self.world
        dist.all_gather_object(found, own, group=self.group)
        return found

    def _unpacked(self, rank: int, failure: _Failure) -> Exception:
        try:
            error = pickle.loads(failure.pickled)
        except Exception:
            error = FastIOError(failure.text)
        add_to_message(error, f"; rank {self.global_rank(rank)} raised this, and so do all ranks that load with it")
        return error  # type: ignore[no-any-return]


def _packed(error: Exception) -> _Failure:
    try:
        return _Failure(pickle.dumps(error), f"{type(error).__name__}: {error}")
    except Exception:
        return _Failure(b"", f"{type(error).__name__}: {error}")


def _differences(one: str, first: Description, other: str, second: Description) -> list[str]:
    """What differs between two ranks, which are called ``one`` and ``other``."""
    problems = []
    for heading, found in first.items():
        expected = second[heading]
        for name in dict.fromkeys((*found, *expected)):
            if name not in found or name not in expected:
                problems.append(f"{heading} {quoted(name)}: only {one if name in found else other} has it")
            elif repr(found[name]) != repr(expected[name]):
                problems.append(f"{heading} {quoted(name)}: {expected[name]} there, {found[name]} on {one}")
    return problems or ["the order of the files or tensors"]


def rank_group(group: Any) -> RankGroup | None:
    """The ranks of a process group, or, for True, of the default one; None for None, or if there is but one rank.

    ValueError without a process group, or if this rank is not in it.
    """
    if group is None:
        return None
    if not dist.is_available() or not dist.is_initialized():
        raise ValueError(f"group={group!r}: there is no process group to load with; call init_process_group first")
    found = dist.group.WORLD if group is True else group
    if found is dist.GroupMember.NON_GROUP_MEMBER:
        raise ValueError("group=: this rank is not in that process group; call it on the ranks of the group only")
    if not isinstance(found, dist.ProcessGroup):
        raise TypeError(f"group={quoted(group)}: expected a process group, True for the default one, or None")
    return RankGroup(found) if dist.get_world_size(found) > 1 else None


def together(ranks: RankGroup | None) -> contextlib.AbstractContextManager[None]:
    """:meth:`RankGroup.together`, if there are ranks."""
    return contextlib.nullcontext() if ranks is None else ranks.together()
