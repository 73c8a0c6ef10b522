"""Simulates backward with gradients that move to host memory beside it (MemFerry, section IV-D). Pure.

Seconds and bytes. The copies of gradients have an engine of their own, first in, first out. Compute waits for the
oldest while more bytes are under way than ``WINDOW`` times the largest moved gradient so far has, and for all of them
at the end: see :mod:`fastio.hybrid.memory.gradient_moves`, which does this.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.costs import DHA, LayerCosts

WINDOW = 2


@dataclass(frozen=True)
class Backward:
    """When each layer's backward and, if its gradient moves, that copy begin and end, in seconds; by layer.

    ``end_s``: when backward ends, moves included. ``moving_nbytes``: the most bytes of moved gradients on the GPU.
    """

    computing: Mapping[int, tuple[float, float]]
    moving: Mapping[int, tuple[float, float]]
    end_s: float
    moving_nbytes: int


def backward(
    costs: Sequence[LayerCosts],
    modes: Sequence[str],
    on_host: Collection[int],
    start_s: float = 0.0,
    late: Mapping[int, float] | None = None,
) -> Backward:
    """Run backward from ``start_s`` on. ``on_host``: the layers whose gradients move. ``late``: ends of DFGB copies.

    A gradient takes as long to the host as its layer's parameters to the GPU.
    """
    now, engine = start_s, 0.0
    computing: dict[int, tuple[float, float]] = {}
    moving: dict[int, tuple[float, float]] = {}
    under_way: deque[int] = deque()
    held = largest = most = 0
    for i in reversed(range(len(costs))):
        layer = costs[i]
        begin = now if late is None else max(now, late.get(i, 0.0))
        now = begin + (layer.backward_dha_s if modes[i] == DHA else layer.backward_s)
        computing[i] = begin, now
        if i not in on_host:
            continue
        begin = max(engine, now)
        engine = begin + layer.copy_s
        moving[i] = begin, engine
        under_way.append(i)
        held += layer.nbytes
        most, largest = max(most, held), max(largest, layer.nbytes)
        while held > WINDOW * largest:
            oldest = under_way.popleft()
            now = max(now, moving[oldest][1])
            held -= costs[oldest].nbytes
    return Backward(computing, moving, max(now, engine), most)
