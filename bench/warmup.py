"""Calls of ``policy="auto"`` that let the dictionaries find their paths before anything is measured."""

from __future__ import annotations

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
    """Save durably and not, load cold and warm, until the dictionaries try no other tools any more.

    That is ``most`` rounds at most; ``tell`` is called that often, for the progress. What was learned is kept on disk.
    """
    calm = done = 0
    try:
        while done < most and (calm < 2 or done < LEAST_ROUNDS):
            _round(thing, path, reserve)
            calm = calm + 1 if settled(path.parent, workload) else 0
            done += 1
            tell()
        for _ in range(done, most):
            tell()
    finally:
        path.unlink(missing_ok=True)
        dicts.flush()


def _round(thing: Object, path: Path, reserve: Reserve) -> None:
    for durable in (True, False):
        with ready(reserve):
            fastio.save(thing, path, durable=durable)
    for bring in (cold.drop, cold.warm):
        try:
            bring(path)
        except cold.ResidencyError:  # on tmpfs nothing is ever cold: there is nothing to learn of that
            continue
        with ready(reserve):
            fastio.load(path)


@contextmanager
def ready(reserve: Reserve) -> Iterator[None]:
    """Inside, the disk is idle and the reserve's memory free; it is taken back at once, before the host gets it."""
    reserve.hold()
    os.sync()
    reserve.release()
    try:
        yield
    finally:
        reserve.hold()


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


def settled(folder: Path, workload: Workload) -> bool:
    """Whether each dictionary would now use the tool that it takes for the fastest, and try no other."""
    return all(answer.tool == answer.entries[0].tool for answer in learned(folder, workload).values())
