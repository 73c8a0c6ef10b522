"""Calls ``policy="auto"`` until the dictionaries have learned, before anything is measured."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fastio
from fastio import dicts
from fastio.dicts.context import load_context, save_context
from fastio.formats.detect import PT
from fastio.transports import registry
from fastio.transports.selection import candidates
from fastio_bench.harness import page_cache
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.workloads.objects import Object, Workload

MOST_ROUNDS = 16
LEAST_ROUNDS = 4
SMALL = 4  # factor of rounds for small objects: tools differ less there, and a round is cheap
_CALM = 2  # rounds in a row without a trial
SECONDS_PER_GB = 4.0  # of one round, roughly, for the progress bar

_CPU = frozenset({"cpu"})


def warm_up(
    workload: Workload,
    thing: Object,
    path: Path,
    reserve: Reserve,
    most: int = MOST_ROUNDS,
    tell: Callable[[], None] = lambda: None,
    heard: Callable[[str, fastio.Transfer], None] = lambda work, transfer: None,
    another: Callable[[int], bool] = lambda done: True,
) -> None:
    """Save durably and not, load cold and warm, each until its dictionary tries no other tool.

    That is two rounds in a row without a trial (eight for a small object), at most ``most`` rounds. ``tell`` is called
    once a round, for the progress, and ``heard`` with each work's calls. ``another`` says, by the number of
    rounds so far, whether there is time for one more. The dictionaries are kept on disk.
    """
    calm = dict.fromkeys(_CALLS, 0)
    enough = _CALM if workload.large else SMALL * _CALM
    done = 0
    try:
        while (
            done < most
            and (done == 0 or another(done))
            and (due := [work for work in _CALLS if calm[work] < enough or done < LEAST_ROUNDS])
        ):
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
    """Save to another file and remove it before its write-back, which would take longer than the save."""
    path = path.with_name(f"{path.name}-cached")
    with ready(reserve, nbytes):
        try:
            fastio.save(thing, path, durable=False)
        finally:
            path.unlink(missing_ok=True)


def _load_cold(thing: Object, path: Path, reserve: Reserve, nbytes: int) -> None:
    if uncache(path):  # files on tmpfs are never cold
        with ready(reserve, 2 * nbytes):  # a tool may read through the page cache
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
    """Wait for an idle disk and free the reserve's memory, or ``nbytes`` of it, during the block.

    Without ``hold``, memory that was released before stays released while the disk becomes idle.
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
    """Write the file out and drop it from the page cache. Returns whether that succeeded."""
    try:
        page_cache.drop(path)
    except page_cache.ResidencyError:
        return False
    return True


def learned(folder: Path, workload: Workload) -> dict[str, dicts.Explanation]:
    """The answers of the folder's dictionaries for each work on the workload."""
    size = workload.nbytes, workload.count
    contexts = {
        "durable save": save_context(PT, "cpu", True, *size),
        "save": save_context(PT, "cpu", False, *size),
        "cold load": load_context(PT, "cpu", False, *size),
        "warm load": load_context(PT, "cpu", True, *size),
    }
    tools = {name: registry.find(name).transport for name in registry.names()}
    able = {name: transport.capabilities for name, transport in tools.items() if transport is not None}
    return {
        work: dicts.default(context.op, str(folder)).explain(
            context, workload.nbytes, candidates(able, context.op, PT, _CPU)
        )
        for work, context in contexts.items()
    }


def settled(folder: Path, workload: Workload) -> dict[str, bool]:
    """By work: whether its dictionary now uses the tool that it estimates as the fastest, and tries no other."""
    return {work: answer.tool == answer.entries[0].tool for work, answer in learned(folder, workload).items()}
