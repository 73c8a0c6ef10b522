"""Calls of ``policy="auto"`` that let the dictionaries find their paths before anything is measured."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fastio
from fastio import dicts, plan, registry
from fastio.bench import cold
from fastio.bench.reserve import Reserve
from fastio.bench.workloads import Object, Workload
from fastio.formats.sense import PT

MOST_ROUNDS = 16
LEAST_ROUNDS = 4
SECONDS_PER_GB = 4.0  # of one round, roughly: for the time left

_CPU = frozenset({"cpu"})


def warm_up(
    workload: Workload,
    thing: Object,
    path: Path,
    reserve: Reserve,
    most: int = MOST_ROUNDS,
    tell: Callable[[], None] = lambda: None,
) -> None:
    """Save durably and not, load cold and warm, each until its dictionary tries no other tools any more.

    That is ``most`` rounds at most; ``tell`` is called that often, for the progress. What was learned is kept on disk.
    """
    calm = dict.fromkeys(_CALLS, 0)
    done = 0
    try:
        while done < most and (due := [work for work in _CALLS if calm[work] < 2 or done < LEAST_ROUNDS]):
            for work in due:
                _CALLS[work](thing, path, reserve, workload.nbytes)
            found = settled(path.parent, workload)
            for work in due:
                calm[work] = calm[work] + 1 if found[work] else 0
            done += 1
            tell()
        for _ in range(done, most):
            tell()
    finally:
        path.unlink(missing_ok=True)
        dicts.flush()


def _save(thing: Object, path: Path, reserve: Reserve, nbytes: int, durable: bool) -> None:
    with ready(reserve, nbytes):
        fastio.save(thing, path, durable=durable)
        uncache(path)


def _load_cold(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    if uncache(path):  # on tmpfs nothing is ever cold: there is nothing to learn of that
        with ready(reserve, 2 * nbytes):  # a tool may read by way of the page cache
            fastio.load(path)
            uncache(path)


def _load_warm(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    reserve.release(nbytes)  # for the page cache
    with contextlib.suppress(cold.ResidencyError):
        cold.warm(path)
        with ready(reserve, nbytes, hold=False):
            fastio.load(path)
            uncache(path)


_CALLS: dict[str, Callable[[Object, Path, Reserve, int], None]] = {
    "durable save": functools.partial(_save, durable=True),
    "save": functools.partial(_save, durable=False),
    "cold load": _load_cold,
    "warm load": _load_warm,
}


@contextmanager
def ready(reserve: Reserve, nbytes: int | None = None, hold: bool = True) -> Iterator[None]:
    """Inside, the disk is idle and the reserve's memory free, or so many bytes of it; it is taken back at once.

    Without ``hold`` what was let go before stays so meanwhile.
    """
    if hold:
        reserve.hold()
    os.sync()
    reserve.release(nbytes)
    try:
        yield
    finally:
        reserve.hold()


def uncache(path: Path) -> bool:
    """Whether the file is now on disk alone: its pages are free, for the reserve or for who reads it next."""
    try:
        cold.drop(path)
    except cold.ResidencyError:
        return False
    return True


def learned(folder: Path, workload: Workload) -> dict[str, dicts.Explanation]:
    """What the dictionaries of the folder's filesystem now say of each work on the workload."""
    size = workload.nbytes, workload.count
    contexts = {
        "durable save": plan.save_context(PT, _CPU, True, *size),
        "save": plan.save_context(PT, _CPU, False, *size),
        "cold load": plan.load_context(PT, _CPU, False, *size),
        "warm load": plan.load_context(PT, _CPU, True, *size),
    }
    tools = {name: registry.find(name).transport for name in registry.names()}
    able = {name: transport.capabilities for name, transport in tools.items() if transport is not None}
    return {
        work: dicts.default(context.op, str(folder)).explain(
            context, workload.nbytes, plan.candidates(able, context.op, PT, _CPU)
        )
        for work, context in contexts.items()
    }


def settled(folder: Path, workload: Workload) -> dict[str, bool]:
    """By work: whether its dictionary would now use the tool that it takes for the fastest, and try no other."""
    return {work: answer.tool == answer.entries[0].tool for work, answer in learned(folder, workload).items()}
