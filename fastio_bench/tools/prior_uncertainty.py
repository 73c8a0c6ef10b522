"""How far what a starting dictionary says of a tool may be off on another machine, as recordings of several tell. Pure.

Tools that do the same work differ by the same everywhere: numpy, which makes the same system calls as posix, lies
within 3 % of its usual ratio to it on small files; on large ones io_uring lies within 15 % of its own, and DALI within
25 %. A tuner that knows which is which spends no calls on telling apart what is told already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from fastio.dicts.priors import usual_doubt

OCTAVES = 2  # either way: sizes that say how far a tool may be off at one
WORTH = 4  # what each machine but the first counts for, by all of these sizes, beside what is usual; by replays
LEAST = 0.03  # what the medians of a recording themselves are off by
_ROUNDS = 30

Bandwidths = Mapping[str, Mapping[str, float]]
"""MB/s by size in bytes and tool, as a dictionary has them."""


def doubts(machines: Sequence[Bandwidths]) -> dict[str, dict[str, float]]:
    """By size and tool, the standard deviation of the logarithm of its relative time from one machine to another.

    At every size that two machines or more have, of the tools that all have there. The estimate is drawn to
    :func:`fastio.dicts.priors.usual_doubt`.
    """
    apart = {size: _apart(machines, size) for size in dict.fromkeys(size for machine in machines for size in machine)}
    apart = {size: deviations for size, deviations in apart.items() if deviations}
    found = {}
    for size, own in apart.items():
        tools = set(own[0])
        near = [
            one
            for other, deviations in apart.items()
            if abs(math.log2(int(other) / int(size))) <= OCTAVES and tools <= set(deviations[0])
            for one in deviations
        ]
        fitted = _fitted(near, list(own[0]), usual_doubt(int(size)), WORTH * (len(own) - 1))
        found[size] = {tool: float(f"{doubt:.2g}") for tool, doubt in fitted.items()}
    return found


def _apart(machines: Sequence[Bandwidths], size: str) -> list[dict[str, float]]:
    """For each machine, how far the logarithm of each tool's time is from its mean over all machines.

    Scaled so that its square is what one machine is expected to deviate by: of n, the mean takes a part of it.
    """
    having = [machine[size] for machine in machines if size in machine]
    if len(having) < 2:
        return []
    tools = [tool for tool in having[0] if all(tool in machine for machine in having)]
    usual = {tool: mean(-math.log(machine[tool]) for machine in having) for tool in tools}
    scale = math.sqrt(len(having) / (len(having) - 1))
    return [{tool: scale * (-math.log(machine[tool]) - usual[tool]) for tool in tools} for machine in having]


def _fitted(near: Sequence[Mapping[str, float]], tools: Sequence[str], usual: float, weight: float) -> dict[str, float]:
    """What each tool deviates by, once what all of them do is taken out, weighted by how little each deviates."""
    found = dict.fromkeys(tools, usual)
    for _ in range(_ROUNDS):
        weights = {tool: 1 / found[tool] ** 2 for tool in tools}
        total = sum(weights.values())
        levels = [sum(weights[tool] * one[tool] for tool in tools) / total for one in near]
        for tool in tools:
            own = mean((one[tool] - level) ** 2 for one, level in zip(near, levels, strict=True))
            found[tool] = max(LEAST, math.sqrt((usual**2 + weight * own) / (1 + weight)))
    return found
