"""Estimates the uncertainty of a starting dictionary on another machine, from recordings of several machines. Pure.

Some ratios between tools are nearly the same everywhere: numpy makes the same system calls as posix and is within 3 %
of its usual ratio to it on small files. On large files io_uring is within 15 % of its usual ratio, and DALI within
25 %. A tuner with these numbers spends no calls on differences that are certain already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean

from fastio.dicts.priors import usual_doubt

OCTAVES = 2  # the sizes within this distance contribute to the estimate at a size
WORTH = 4  # the weight of each machine after the first, against the usual value; chosen by replays
LEAST = 0.03  # the error of a recording's medians
_ROUNDS = 30

Bandwidths = Mapping[str, Mapping[str, float]]
"""MB/s by size in bytes and by tool, as in a dictionary."""


def doubts(machines: Sequence[Bandwidths]) -> dict[str, dict[str, float]]:
    """By size and tool: the standard deviation, over machines, of the logarithm of the tool's relative time.

    It covers the sizes that two or more machines have, and the tools that all of them have there. The estimate is
    shrunk towards :func:`fastio.dicts.priors.usual_doubt`.
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
    """For each machine: the deviation of the logarithm of each tool's time from its mean over all machines.

    It is scaled so that its square is an unbiased estimate of the variance: the mean of n machines takes a part of it.
    """
    having = [machine[size] for machine in machines if size in machine]
    if len(having) < 2:
        return []
    tools = [tool for tool in having[0] if all(tool in machine for machine in having)]
    usual = {tool: mean(-math.log(machine[tool]) for machine in having) for tool in tools}
    scale = math.sqrt(len(having) / (len(having) - 1))
    return [{tool: scale * (-math.log(machine[tool]) - usual[tool]) for tool in tools} for machine in having]


def _fitted(near: Sequence[Mapping[str, float]], tools: Sequence[str], usual: float, weight: float) -> dict[str, float]:
    """Each tool's deviation, less the tools' common one, which is weighted by how little each tool deviates."""
    found = dict.fromkeys(tools, usual)
    for _ in range(_ROUNDS):
        weights = {tool: 1 / found[tool] ** 2 for tool in tools}
        total = sum(weights.values())
        levels = [sum(weights[tool] * one[tool] for tool in tools) / total for one in near]
        for tool in tools:
            own = mean((one[tool] - level) ** 2 for one, level in zip(near, levels, strict=True))
            found[tool] = max(LEAST, math.sqrt((usual**2 + weight * own) / (1 + weight)))
    return found
