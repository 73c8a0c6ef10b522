"""Searches the largest depth that trains under a memory limit."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastio_bench.offload import training_child
from fastio_bench.offload.training_job import Job
from fastio_bench.offload.training_ways import PLAIN

PROBE_STEPS = 1  # after the warm-up: training has run with the profile and with the plan
MOST = 1 << 14
GOAL = 7  # times plain training's depth; in 512 MiB, what Offload does not move has room for 9 times that
_GRAIN = 16  # the answer is within a sixteenth


@dataclass(frozen=True)
class Deepest:
    """The largest depth that trained, and the smallest that did not, with its error.

    A depth of 0: none trained. ``fails_at`` of 0: none failed before the search was interrupted.
    """

    way: str
    depth: int
    fails_at: int
    reason: str


def search(trains: Callable[[int], str | None], start: int, most: int = MOST) -> tuple[int, int, str]:
    """Find the largest depth that trains, within a sixteenth, by doubling, then bisection.

    Returns it, the smallest depth that does not train, and the reason. ``trains`` returns None, or the reason.
    ``start`` is tried first; if it does not train, the bisection begins there. If ``most`` trains, the second number is
    one above it, and the reason is empty.
    """
    low, high, why = 0, max(1, start), ""
    while high <= most:
        problem = trains(high)
        if problem is not None:
            why = problem
            break
        low, high = high, min(2 * high, most) if high < most else most + 1
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
    room: int = MOST,
) -> Iterator[Deepest]:
    """Yield the largest depth that trains under ``job.memory_limit``, for plain training, then for each way.

    A way starts at the goal, ``GOAL`` times plain training's depth. Without ``further``, it stops there; it never
    passes ``room``, the depth that the disk has room for. Raises ChildError if training fails for another reason than
    memory. After a KeyboardInterrupt the results so far are yielded before it is raised.
    """
    start, most = 1, MOST
    for way in (PLAIN, *ways):
        here = replace(job, way=way, settings=ways.get(way, {}), steps=PROBE_STEPS)
        tried: dict[int, str | None] = {}

        def trains(depth: int, here: Job = here, tried: dict[int, str | None] = tried) -> str | None:
            tell(f"{here.way}: depth {depth}")
            tried[depth] = _problem(replace(here, depth=depth), folder / "files")
            return tried[depth]

        try:
            found = Deepest(way, *search(trains, start, most))
        except KeyboardInterrupt:
            yield _until_now(way, tried)
            raise
        yield found
        if way == PLAIN:
            start = min(max(1, GOAL * found.depth), room)
            most = room if further else start


def _problem(job: Job, files: Path) -> str | None:
    """Train in a fresh process. Returns None, or how memory ran out."""
    files.mkdir()
    try:
        training_child.train(replace(job, folder=str(files)), training_child.EXACT_MEMORY)
    except training_child.OutOfMemoryError as error:
        return str(error)
    finally:
        shutil.rmtree(files)
    return None


def _until_now(way: str, tried: dict[int, str | None]) -> Deepest:
    depth = max((depth for depth, problem in tried.items() if problem is None), default=0)
    fails_at, why = min(((depth, why) for depth, why in tried.items() if why is not None), default=(0, ""))
    return Deepest(way, depth, fails_at, f"interrupted, deeper may train; {why}".removesuffix("; "))
