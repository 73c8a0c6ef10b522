"""The cost of each layer in each mode, and the time of forward under a plan (MemFerry, section IV).

Pure. Seconds and bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

from fastio.errors import FastIOError, kind_of, quoted

GFGB, DHA, DFGB = "GFGB", "DHA", "DFGB"
"""GFGB: a layer's parameters are copied to the GPU before forward. DHA: they are read in place over PCIe. DFGB: read in
place in forward and copied before backward."""

MODES = (GFGB, DHA, DFGB)

BUCKET = 32 << 20
"""Bytes of gradients that are copied to the host, and updated, at a time: an update this long hides the next copies."""


class GpuBudgetError(FastIOError, ValueError):
    """No plan keeps to the GPU bytes that are allowed."""


@dataclass(frozen=True)
class LayerCosts:
    """One layer, as profiled.

    ``copy_s``: to copy its parameters to the GPU. ``forward_s`` and ``backward_s``: from GPU memory. ``forward_dha_s``
    and ``backward_dha_s``: from host memory in place. ``between_s``: work between this layer and the next. ``nbytes``:
    its parameters. Its gradients have as many, and take ``copy_s`` to the host.
    """

    copy_s: float
    forward_s: float
    forward_dha_s: float
    backward_s: float = 0.0
    backward_dha_s: float = 0.0
    between_s: float = 0.0
    nbytes: int = 0

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if not 0 <= value < math.inf:
                raise ValueError(f"LayerCosts.{one.name} is {value}: expected a finite number of 0 or more")


def simulate(costs: Sequence[LayerCosts], modes: Sequence[str]) -> float:
    """Return the seconds of the forward pass: one copy engine copies the GFGB layers in order from time 0 on.

    Raises ValueError for an unknown mode, or if there is not one mode per layer.
    """
    check_costs(costs)
    if isinstance(modes, str) or not isinstance(modes, Sequence):
        raise TypeError(f"modes={quoted(modes)} is {kind_of(modes)}: expected a list of modes, one for each layer")
    ends = forward_ends(costs, modes)
    return ends[-1] if ends else 0.0


def check_costs(costs: object) -> None:
    """Raise TypeError for anything but a list of costs."""
    if not isinstance(costs, Sequence) or not all(isinstance(one, LayerCosts) for one in costs):
        raise TypeError(f"costs={quoted(costs)} is {kind_of(costs)}: expected a list of LayerCosts, one for each layer")


def forward_ends(costs: Sequence[LayerCosts], modes: Sequence[str]) -> list[float]:
    """Return when each layer's forward ends, including the work between it and the next."""
    if len(costs) != len(modes):
        raise ValueError(f"{len(modes)} modes for {len(costs)} layers: expected one for each")
    for layer, mode in enumerate(modes):
        if mode not in MODES:
            raise ValueError(f"layer {layer} has mode {mode!r}: expected one of {', '.join(MODES)}")
    now = copied = 0.0
    ends: list[float] = []
    for costs_of, mode in zip(costs, modes, strict=True):
        if mode == GFGB:
            copied += costs_of.copy_s
            now = max(now, copied) + costs_of.forward_s
        else:
            now += costs_of.forward_dha_s
        now += costs_of.between_s
        ends.append(now)
    return ends
