"""Chooses whose gradients stay on the GPU (GO-MemFerry, section IV): a 0/1 knapsack of bytes and seconds. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fastio.hybrid.planning.pareto import Integers, undominated

STATES = 20_000  # kept after each layer


def stay_on_gpu(nbytes: Sequence[int], gain_s: Sequence[float], room: int) -> tuple[int, ...]:
    """Return the layers whose gradients stay, ascending: the most seconds gained in at most ``room`` bytes.

    ``gain_s`` is what backward saves; a layer without gain does not stay. Exact, for any sizes, while no layer leaves
    more than ``STATES`` undominated states; beyond that they are thinned evenly.
    """
    used, lost = np.zeros(1), np.zeros(1)  # lost: minus the gain, as a cost
    steps: list[tuple[Integers, int]] = []
    for size, gain in zip(nbytes, gain_s, strict=True):
        count = len(used)
        if gain > 0:
            used, lost = np.concatenate((used, used + size)), np.concatenate((lost, lost - gain))
        kept = undominated(used, lost, STATES)
        kept = kept[used[kept] <= room]
        steps.append((kept, count))
        used, lost = used[kept], lost[kept]
    state, stay = len(used) - 1, []  # the last state has the most gain
    for layer in reversed(range(len(steps))):
        kept, count = steps[layer]
        chosen = int(kept[state])
        if chosen >= count:
            stay.append(layer)
        state = chosen % count
    return tuple(reversed(stay))
