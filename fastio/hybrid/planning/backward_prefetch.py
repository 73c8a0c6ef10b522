"""Chooses the layers read in place in forward and copied before backward: DFGB (MemFerry, section IV-B). Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.backward import backward
from fastio.hybrid.planning.costs import DFGB, DHA, GFGB, LayerCosts, forward_ends

NEGLIGIBLE = 1e-3  # share of forward and backward


def admit(costs: Sequence[LayerCosts], modes: Sequence[str], room: float = math.inf) -> tuple[str, ...]:
    """Return the modes, with DFGB for those DHA layers whose copies end before their backward begins.

    Best first: most seconds of backward saved per second of copying. ``room``: bytes of parameters that still fit on
    the GPU. A layer is admitted if the copies of all admitted layers, by earliest deadline, end in time.
    """
    found = list(modes)
    ends = forward_ends(costs, modes)
    candidates = [i for i, mode in enumerate(modes) if mode == DHA and costs[i].backward_dha_s > costs[i].backward_s]
    candidates.sort(key=lambda i: _worth(costs[i]), reverse=True)
    for i in candidates:
        if costs[i].nbytes > room:
            continue
        found[i] = DFGB
        if in_time(costs, found, ends):
            room -= costs[i].nbytes
        else:
            found[i] = DHA
    return tuple(found)


def without_useless(costs: Sequence[LayerCosts], modes: Sequence[str], on_host: Collection[int]) -> tuple[str, ...]:
    """Return the modes, with DHA for DFGB layers whose copies save next to no time: GPU memory is worth more.

    They are the layers that save the least time per byte, as long as forward and backward take at most
    ``NEGLIGIBLE`` longer in all. While backward waits for gradients that move to the host (``on_host``), no copy saves
    any.
    """
    found = list(modes)
    forward_s = (forward_ends(costs, modes) or [0.0])[-1]
    most = (1 + NEGLIGIBLE) * backward(costs, modes, on_host, forward_s).end_s
    candidates = [i for i, mode in enumerate(modes) if mode == DFGB]
    for i in sorted(
        candidates, key=lambda i: (costs[i].backward_dha_s - costs[i].backward_s) / max(costs[i].nbytes, 1)
    ):
        found[i] = DHA
        if backward(costs, found, on_host, forward_s).end_s > most:
            found[i] = DFGB
    return tuple(found)


def in_time(costs: Sequence[LayerCosts], modes: Sequence[str], forward_ends_s: Sequence[float]) -> bool:
    """Return whether every DFGB layer's copy ends before its backward begins."""
    return all(copy.end_s <= copy.due_s for copy in copies(costs, modes, forward_ends_s))


@dataclass(frozen=True)
class Copy:
    """A DFGB layer's copy, in seconds since forward began; ``due_s`` is when its backward would begin."""

    layer: int
    start_s: float
    end_s: float
    due_s: float


def copies(costs: Sequence[LayerCosts], modes: Sequence[str], forward_ends_s: Sequence[float]) -> list[Copy]:
    """Return the copies of DFGB layers in order: after those of GFGB layers, earliest deadline first.

    A copy may begin when the layer's forward has ended and the copy engine is free; copies are not interrupted.
    """
    engine = sum(layer.copy_s for layer, mode in zip(costs, modes, strict=True) if mode == GFGB)
    due: dict[int, float] = {}
    now = forward_ends_s[-1] if forward_ends_s else 0.0
    for i in reversed(range(len(costs))):
        if modes[i] == DFGB:
            due[i] = now
        now += costs[i].backward_dha_s if modes[i] == DHA else costs[i].backward_s
    found: list[Copy] = []
    waiting = set(due)
    while waiting:
        start = max(engine, min(forward_ends_s[i] for i in waiting))
        first = min((i for i in waiting if forward_ends_s[i] <= start), key=lambda i: due[i])
        engine = start + costs[first].copy_s
        found.append(Copy(first, start, engine, due[first]))
        waiting.remove(first)
    return found


def _worth(layer: LayerCosts) -> float:
    saved = layer.backward_dha_s - layer.backward_s
    return saved / layer.copy_s if layer.copy_s > 0 else math.inf
