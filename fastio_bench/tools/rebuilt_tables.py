"""The best tools over rebuilds, and how close *first*, *best* and the live tuner come to always using the best.

Pure.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fastio_bench.tools.rebuilt_dictionaries import Rebuild

ONE_TOOL = "one tool, by other half"


@dataclass(frozen=True, slots=True)
class Size:
    """One size: how often each tool was the best in ``rebuilds``, the first rebuild's best, the most frequent best."""

    nbytes: int
    rebuilds: int
    best_of: Mapping[str, int]
    first: str
    best: str


@dataclass(frozen=True, slots=True)
class Share:
    """How close a way of choosing comes to the best tool of each rebuild, over all sizes.

    ``cases``: the share of rebuilds whose best tool it chose, which is the paper's figure. ``time``: the least possible
    time over that of its choices.
    """

    way: str
    cases: float
    time: float


def sizes(found: Mapping[int, Sequence[Rebuild]]) -> list[Size]:
    """One row of the paper's tables for each size."""
    result = []
    for nbytes, rebuilds in found.items():
        bests = [_best(rebuild) for rebuild in rebuilds]
        counts = Counter(bests)
        result.append(Size(nbytes, len(rebuilds), counts, bests[0], max(counts, key=counts.__getitem__)))
    return result


def shares(found: Mapping[int, Sequence[Rebuild]]) -> list[Share]:
    """*First*, *best*, the live tuner, each tool alone, and `ONE_TOOL` if a size was rebuilt twice.

    The best of the tools alone is known afterwards only, and has the luck of that knowledge. `ONE_TOOL` has not: the
    tool for every second rebuild is the one that was the fastest in the others.
    """
    lines = {size.nbytes: size for size in sizes(found)}
    ways: dict[str, Callable[[int, Rebuild], str]] = {
        "first": lambda nbytes, rebuild: lines[nbytes].first,
        "best": lambda nbytes, rebuild: lines[nbytes].best,
        "live tuner": lambda nbytes, rebuild: rebuild.live,
    }
    every = dict.fromkeys(tool for rebuilds in found.values() for rebuild in rebuilds for tool in rebuild.written)
    for tool in every:
        ways[f"{tool} alone"] = lambda nbytes, rebuild, tool=tool: tool  # type: ignore[misc]
    half = {id(rebuild): number % 2 for rebuilds in found.values() for number, rebuild in enumerate(rebuilds)}
    fastest = [_fastest(found, number) for number in (0, 1)]
    if all(fastest):
        ways[ONE_TOOL] = lambda nbytes, rebuild: fastest[1 - half[id(rebuild)]]
    return [_share(way, choose, found) for way, choose in ways.items()] if found else []


def _share(way: str, choose: Callable[[int, Rebuild], str], found: Mapping[int, Sequence[Rebuild]]) -> Share:
    right = cases = 0
    least = took = 0.0
    for nbytes, rebuilds in found.items():
        for rebuild in rebuilds:
            sums, chosen = rebuild.sums(), choose(nbytes, rebuild)
            right += chosen == _best(rebuild)
            cases += 1
            least += min(sums.values())
            took += sums[chosen]
    return Share(way, right / cases, least / took)


def _fastest(found: Mapping[int, Sequence[Rebuild]], half: int) -> str:
    """Return the tool with the least time over every second rebuild of each size; "" if there is none."""
    took: defaultdict[str, float] = defaultdict(float)
    for rebuilds in found.values():
        for rebuild in rebuilds[half::2]:
            for tool, seconds in rebuild.sums().items():
                took[tool] += seconds
    return min(took, key=took.__getitem__, default="")


def _best(rebuild: Rebuild) -> str:
    sums = rebuild.sums()
    return min(sums, key=sums.__getitem__)
