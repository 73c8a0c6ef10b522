"""The assignment of GFGB and DHA with the shortest forward pass, by dynamic programming. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastio.hybrid.planning.costs import DHA, GFGB, LayerCosts, simulate
from fastio.hybrid.planning.memferry import memferry
from fastio.hybrid.planning.pareto import Integers, undominated

STATES = 3000  # kept after each layer


def optimal(costs: Sequence[LayerCosts]) -> tuple[str, ...]:
    """Return a mode for each layer, GFGB or DHA.

    Two times of the layers so far matter to later ones: when compute is done, and when the copy engine is. Exact while
    no layer leaves more than ``STATES`` undominated pairs, which takes at least 12 layers; beyond that they are thinned
    evenly. Never slower than :func:`fastio.hybrid.planning.memferry.memferry`.
    """
    now, copied = np.zeros(1), np.zeros(1)
    steps: list[tuple[Integers, int]] = []
    for layer in costs:
        count = len(now)
        after_copy = copied + layer.copy_s
        on_gpu, in_place = np.maximum(now, after_copy) + layer.forward_s, now + layer.forward_dha_s
        now = np.concatenate((on_gpu, in_place)) + layer.between_s
        copied = np.concatenate((after_copy, copied))
        kept = undominated(now, copied, STATES)
        steps.append((kept, count))
        now, copied = now[kept], copied[kept]
    state, modes = 0, []  # the first state has the least time
    for kept, count in reversed(steps):
        chosen = int(kept[state])
        modes.append(GFGB if chosen < count else DHA)
        state = chosen % count
    found, rival = tuple(reversed(modes)), memferry(costs)
    return found if simulate(costs, found) <= simulate(costs, rival) else rival
