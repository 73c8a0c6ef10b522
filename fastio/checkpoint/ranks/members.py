"""Who saves and restores together: this process alone, or all ranks of a process group."""

from __future__ import annotations

import contextlib
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch

from fastio.errors import CheckpointError, RankError, RankLostError, kind_of, quoted

if TYPE_CHECKING:
    from fastio.checkpoint.ranks.gloo import Gloo

_Value = TypeVar("_Value")

ProcessGroup = Literal["auto"] | Any
"""What ``process_group=`` takes: "auto", None, or a ProcessGroup of torch.distributed."""


class Alone:
    """This process, which needs nobody to agree."""

    rank, world = 0, 1

    def exchange(self, value: _Value, what: str) -> list[_Value]:
        """Return the values of all ranks. RankError if they do not all call ``what``."""
        return [value]

    def first(self, work: Callable[[], _Value], what: str) -> _Value:
        """Return what ``work`` returns on the first rank, where alone it is called; raise its error on all ranks.

        RankError, and no work, if they do not all call ``what``.
        """
        return work()

    def agreement(self, what: str, twice: bool = False) -> Agreement:
        """Return what all ranks reach together, or none of them."""
        return Agreement(self, what, twice)

    def report(self, error: Exception | None, what: str) -> None:
        """Raise the errors of all ranks on all of them."""
        if error is not None:
            raise error

    def leave(self, why: str) -> None:
        """Make all further calls of other ranks fail, where they would wait for this one."""

    def close(self) -> None:
        """End the connections to the others."""


class Ranks(Alone):
    """The ranks of a process group. Every rank calls the same methods in the same order.

    ``calls`` are the connections for the thread that calls the Checkpointer, ``writes`` those for the thread that
    writes: ``connect`` makes them, at their first use, which is collective. An error of one rank is raised as RankError
    on all; a rank that ended is RankLostError.
    """

    def __init__(self, calls: Gloo, connect: Callable[[], Gloo]) -> None:
        self.calls, self._connect = calls, connect
        self._writes: Gloo | None = None
        self.rank, self.world = calls.rank, calls.world

    @property
    def writes(self) -> Gloo:
        """The connections for the thread that writes."""
        if self._writes is None:
            self._writes = self._connect()
        return self._writes

    def exchange(self, value: _Value, what: str) -> list[_Value]:
        values, calls = self._exchanged(value, what)
        _require_one_call(calls)
        return values

    def _exchanged(self, value: _Value, what: str) -> tuple[list[_Value], list[str]]:
        """The values of all ranks, and what each calls."""
        answers = list(map(pickle.loads, self.calls.exchange(pickle.dumps((value, what)))))
        return [value for value, _ in answers], [called for _, called in answers]

    def first(self, work: Callable[[], _Value], what: str) -> _Value:
        self.exchange(None, what)
        sent = b""
        if self.rank == 0:
            try:
                sent = pickle.dumps((None, work()))
            except Exception as error:
                sent = pickle.dumps((sendable(error), None))
        failure, value = pickle.loads(self.calls.from_first(sent))
        if failure is not None:
            raise RankError({0: failure}) from failure
        return value  # type: ignore[no-any-return]

    def report(self, error: Exception | None, what: str) -> None:
        if isinstance(error, RankLostError):
            raise error
        found, calls = self._exchanged(None if error is None else sendable(error), what)
        errors = {rank: one for rank, one in enumerate(found) if one is not None}
        if errors:
            raise error if isinstance(error, RankError) else RankError(errors) from error
        _require_one_call(calls)

    def leave(self, why: str) -> None:
        self.calls.close(why)
        if self._writes is not None:
            self._writes.close(why)

    def close(self) -> None:
        self.calls.close()
        if self._writes is not None:
            self._writes.close()


class Agreement:
    """A point that all ranks reach, or none passes; as a context it takes the error of a rank to all of them.

    After :meth:`reach`, an error other than RankError ends the connections, so that no rank waits for this one; or, if
    the ranks agree ``twice``, the end of the context is another such point.
    """

    def __init__(self, members: Alone, what: str, twice: bool) -> None:
        self._members, self._what, self._twice = members, what, twice
        self._is_reached = self._is_over = False

    def reach(self) -> None:
        """Return when all ranks have come here. RankError if one failed before."""
        self._is_reached = True
        try:
            self._members.report(None, self._what)
        except BaseException:
            self._is_over = True
            raise

    def __enter__(self) -> Agreement:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        if self._is_over or self._members.world == 1:
            return
        if (error is None or isinstance(error, Exception)) and (self._twice or not self._is_reached):
            self._members.report(error, self._what)
        elif error is not None and not isinstance(error, RankError | RankLostError):
            self._members.leave(f"rank {self._members.rank} failed: {kind_of(error)}")


def _require_one_call(calls: list[str]) -> None:
    """Raise RankError if the ranks call different methods."""
    for rank, called in enumerate(calls):
        if called != calls[0]:
            problem = CheckpointError(
                f"rank 0 called {calls[0]}, and rank {rank} {called}: all ranks make the same calls of a "
                "Checkpointer, in the same order; or process_group=None, for one that is of this process alone"
            )
            raise RankError({rank: problem})


def sendable(error: Exception) -> Exception:
    """The error itself if it can be pickled, else a CheckpointError with its text."""
    with contextlib.suppress(Exception):
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return CheckpointError(f"{type(error).__name__}: {error}")


def members_of(process_group: ProcessGroup) -> Alone:
    """Return the ranks of a group, connected; or this process alone, if it is None, or "auto" without several ranks.

    Collective. TypeError for anything else, ValueError for a group that this process is not in.
    """
    group = _group(process_group)
    if group is None:
        return Alone()
    import torch.distributed as dist

    rank, world = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise _not_in_group()
    return Alone() if world == 1 else _connected(group, rank, world)


def _group(process_group: Any) -> Any:
    """The group of torch that is meant, or None."""
    if process_group is None:
        return None
    dist = sys.modules.get("torch.distributed") or torch.distributed
    is_there = dist.is_available()
    if process_group == "auto" and isinstance(process_group, str):
        return dist.group.WORLD if is_there and dist.is_initialized() else None
    if is_there and process_group is dist.GroupMember.NON_GROUP_MEMBER:  # what new_group returns on other ranks
        raise _not_in_group()
    kinds = (dist.ProcessGroup,) if is_there else ()
    if not isinstance(process_group, kinds):
        raise TypeError(
            f"process_group={quoted(process_group)} is {kind_of(process_group)}: expected 'auto', None for this "
            "process alone, or a ProcessGroup of torch.distributed"
        )
    return process_group


def _not_in_group() -> ValueError:
    rank = torch.distributed.get_rank()
    return ValueError(f"process_group: rank {rank} is none of its ranks; make the Checkpointer on those only")


_made: dict[str, int] = {}
"""How many Checkpointers were made on a group, by its name: the same on all ranks."""


def _connected(group: Any, rank: int, world: int) -> Ranks:
    from torch.distributed import PrefixStore, distributed_c10d  # type: ignore[attr-defined]

    from fastio.checkpoint.ranks.gloo import Gloo

    store = distributed_c10d._world.pg_map[group][1]
    timeout = _timeout_of(group)
    number = _made.get(key := distributed_c10d._world.pg_names[group], 0)
    _made[key] = number + 1

    def connect(kind: str) -> Gloo:
        return Gloo(PrefixStore(f"fastio-checkpointer-{number}-{kind}", store), rank, world, timeout)

    return Ranks(connect("calls"), lambda: connect("writes"))


def _timeout_of(group: Any) -> Any:
    from torch.distributed import distributed_c10d

    backends: Iterator[Any] = (
        group._get_backend(torch.device(kind)) for kind in ("cpu", "cuda") if kind in str(group._device_types)
    )
    for backend in backends:
        return backend.options._timeout
    return distributed_c10d.default_pg_timeout
