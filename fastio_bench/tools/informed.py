"""What choosing could reach if trying cost nothing: told what every tool took in every call that is over. Pure.

A tuner hears of the tool that it used alone. What even this learner misses, no tuner can be asked for: the difference
between tools is then smaller than what their times vary by.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from statistics import mean, median

from fastio_bench.tools.replaying import WINDOW, Timed


def informed(calls: Sequence[Timed]) -> list[str]:
    """The tool for each call: the one with the least median, over the calls before it that are nearest in size.

    What a call took is compared with what the other tools took for the same call, so that busy spells cancel out.
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
