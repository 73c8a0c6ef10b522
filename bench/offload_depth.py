"""The largest depth that trains under a limit of memory, found by training."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastio.bench import training_child
from fastio.bench.training_job import Job
from fastio.bench.training_ways import PLAIN

PROBE_STEPS = 1  # after those that warm up: the profile and the plan have both been trained with
MOST = 1 << 14
GOAL = 10  # times plain training's depth
_GRAIN = 16  # the answer is within a sixteenth


@dataclass(frozen=True)
class Deepest:
    """The largest depth that trained, and the smallest that did not, with what it said; 0 where not even 1 trains."""

    way: str
    depth: int
    fails_at: int
    reason: str


def search(trains: Callable[[int], str | None], start: int, most: int = MOST) -> tuple[int, int, str]:
    """The largest depth that trains, within a sixteenth, the smallest that does not, and why: doubling, then halving.

    ``trains`` gives None, or why not. ``start`` is tried first; where it does not train, halving begins there. A depth
    of ``most`` ends the search: the second number is then beyond it, and the reason empty.
    """
    low, high, why = 0, max(1, start), ""
    while high <= most:
        problem = trains(high)
        if problem is not None:
            why = problem
            break
        low, high = high, 2 * high
    while high <= most and high - low > max(1, low // _GRAIN):
        middle = (low + high) // 2
        problem = trains(middle)
        if problem is None:
            low = middle
        else:
            high, why = middle, problem
    return low, high, why


def deepest(
    job: Job,
    ways: dict[str, dict[str, Any]],
    folder: Path,
    further: bool = True,
    tell: Callable[[str], None] = lambda what: None,
) -> Iterator[Deepest]:
    """For plain training, then for each way, the largest depth that trains under ``job.memory_limit``.

    Ways are tried from the goal on, that is ``GOAL`` times plain training's depth; without ``further``, not beyond it.
    Raises ChildError where training fails of anything else than memory.
    """
    start, most = 1, MOST
    for way in (PLAIN, *ways):
        files = folder / "files"

        def trains(depth: int, way: str = way, files: Path = files) -> str | None:
            tell(f"{way}: depth {depth}")
            files.mkdir()
            here = replace(job, way=way, settings=ways.get(way, {}), depth=depth, steps=PROBE_STEPS, folder=str(files))
            try:
                training_child.train(here, training_child.EXACT_MEMORY)
            except training_child.OutOfMemoryError as error:
                return str(error)
            finally:
                shutil.rmtree(files)
            return None

        found = Deepest(way, *search(trains, start, most))
        yield found
        if way == PLAIN:
            start = max(1, GOAL * found.depth)
            most = MOST if further else start
