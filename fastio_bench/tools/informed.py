"""An upper bound for any tuner: a learner that gets the time of every tool for every past call. Pure.

A real tuner gets only the time of the tool that it used. What this learner misses, no tuner can reach: there the tools
differ by less than their times vary.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from statistics import mean, median

from fastio_bench.tools.replaying import WINDOW, Timed


def informed(calls: Sequence[Timed]) -> list[str]:
    """Choose a tool for each call: the one with the least median over the earlier calls that are nearest in size.

    Each time is taken relative to the other tools' times for the same call, so that busy phases cancel out.
    """
    if not calls:
        return []
    tools = list(calls[0].seconds)
    heard: list[tuple[int, int]] = []
    relative: list[dict[str, float]] = []
    chosen = []
    for index, call in enumerate(calls):
        place = bisect_left(heard, (call.nbytes, 0))
        near = heard[max(0, place - WINDOW // 2) : place + WINDOW // 2 + 1]
        chosen.append(min(tools, key=lambda tool: median(relative[at][tool] for _, at in near)) if near else tools[0])
        logs = {tool: math.log(call.seconds[tool]) for tool in tools}
        usual = mean(logs.values())
        relative.append({tool: at - usual for tool, at in logs.items()})
        insort(heard, (call.nbytes, index))
    return chosen
