"""Calls of ``policy="auto"`` that let the dictionaries find their paths before anything is measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fastio
from fastio import dicts
from fastio.engine import candidates
from fastio.formats.detect import PT
from fastio.transports import registry
from fastio_bench.harness import page_cache
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.workloads.objects import Object, Workload

MOST_ROUNDS = 16
LEAST_ROUNDS = 4
SMALL = 4  # so many times as many rounds for small things: tools differ less there, and a round takes little
_CALM = 2  # rounds in a row without a try
SECONDS_PER_GB = 4.0  # of one round, roughly: for the time left

_CPU = frozenset({"cpu"})


def warm_up(
    workload: Workload,
    thing: Object,
    path: Path,
    reserve: Reserve,
    most: int = MOST_ROUNDS,
    tell: Callable[[], None] = lambda: None,
    heard: Callable[[str, fastio.Transfer], None] = lambda work, transfer: None,
) -> None:
    """Save durably and not, load cold and warm, each until its dictionary tries no other tools any more.

    That is for two rounds in a row (eight, if it is small), of ``most`` at most; ``tell`` is called that often, for the
    progress, and ``heard`` with each work's calls. What was learned is kept on disk.
    """
    calm = dict.fromkeys(_CALLS, 0)
    enough = _CALM if workload.large else SMALL * _CALM
    done = 0
    try:
        while done < most and (due := [work for work in _CALLS if calm[work] < enough or done < LEAST_ROUNDS]):
            for work in due:
                with fastio.record() as transfers:
                    _CALLS[work](thing, path, reserve, workload.nbytes)
                for transfer in transfers:
                    heard(work, transfer)
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


def _save_durably(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    with ready(reserve, nbytes):
        fastio.save(thing, path)
        uncache(path)


def _save(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    """To a file of its own, which is gone before it was written to the disk: that would take longer than the rest."""
    path = path.with_name(f"{path.name}-cached")
    with ready(reserve, nbytes):
        try:
            fastio.save(thing, path, durable=False)
        finally:
            path.unlink(missing_ok=True)


def _load_cold(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    if uncache(path):  # on tmpfs nothing is ever cold: there is nothing to learn of that
        with ready(reserve, 2 * nbytes):  # a tool may read by way of the page cache
            fastio.load(path)
            uncache(path)


def _load_warm(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    reserve.release(nbytes)  # for the page cache
    with contextlib.suppress(page_cache.ResidencyError):
        page_cache.warm(path)
        with ready(reserve, nbytes, hold=False):
            fastio.load(path)
            uncache(path)


_CALLS: dict[str, Callable[[Object, Path, Reserve, int], None]] = {
    "durable save": _save_durably,
    "save": _save,
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
        page_cache.drop(path)
    except page_cache.ResidencyError:
        return False
    return True


def learned(folder: Path, workload: Workload) -> dict[str, dicts.Explanation]:
    """What the dictionaries of the folder's filesystem now say of each work on the workload."""
    size = workload.nbytes, workload.count
    contexts = {
        "durable save": candidates.save_context(PT, _CPU, True, *size),
        "save": candidates.save_context(PT, _CPU, False, *size),
        "cold load": candidates.load_context(PT, _CPU, False, *size),
        "warm load": candidates.load_context(PT, _CPU, True, *size),
    }
    tools = {name: registry.find(name).transport for name in registry.names()}
    able = {name: transport.capabilities for name, transport in tools.items() if transport is not None}
    return {
        work: dicts.default(context.op, str(folder)).explain(
            context, workload.nbytes, candidates.candidates(able, context.op, PT, _CPU)
        )
        for work, context in contexts.items()
    }


def settled(folder: Path, workload: Workload) -> dict[str, bool]:
    """By work: whether its dictionary would now use the tool that it takes for the fastest, and try no other."""
    return {work: answer.tool == answer.entries[0].tool for work, answer in learned(folder, workload).items()}
