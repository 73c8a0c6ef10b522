"""Plans a mode for each layer, and which gradients go to host memory. Pure. Seconds and bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Literal

from fastio.errors import kind_of, quoted
from fastio.hybrid.planning.backward_prefetch import admit, without_useless
from fastio.hybrid.planning.costs import DHA, GFGB, GpuBudgetError, LayerCosts, check_costs, simulate
from fastio.hybrid.planning.gradient_placement import stay_on_gpu
from fastio.hybrid.planning.memferry import memferry
from fastio.hybrid.planning.optimal import optimal
from fastio.sizes import parse_size


@dataclass(frozen=True)
class Plan:
    """``modes``: "GFGB", "DHA" or "DFGB" for each layer. ``forward_s``: the simulated forward pass.

    ``gradients_on_host``: the layers whose gradients go to host memory, ascending.
    """

    modes: tuple[str, ...]
    forward_s: float
    gradients_on_host: tuple[int, ...]


def _zero_offload(costs: Sequence[LayerCosts]) -> tuple[str, ...]:
    return (GFGB,) * len(costs)


Planner = Callable[[Sequence[LayerCosts]], Sequence[str]]

_PLANNERS: dict[str, Callable[[Sequence[LayerCosts]], tuple[str, ...]]] = {
    "memferry": memferry,
    "optimal": optimal,
    "zero-offload": _zero_offload,
}
PLANNERS = tuple(_PLANNERS)
PlannerName = Literal["memferry", "optimal", "zero-offload"]


def check_settings(planner: str | Planner, gradient_reserve: float) -> None:
    """Raise ValueError for an unknown planner, or a ``gradient_reserve`` outside 0 to 1."""
    if not callable(planner) and planner not in PLANNERS:
        raise ValueError(f"planner={planner!r}: expected one of {', '.join(PLANNERS)}")
    if not isinstance(gradient_reserve, Real):
        raise TypeError(f"gradient_reserve={quoted(gradient_reserve)}: expected a share from 0 to 1")
    if not 0 <= gradient_reserve <= 1:
        raise ValueError(f"gradient_reserve is {gradient_reserve}: expected a share from 0 to 1")


def plan(
    costs: Sequence[LayerCosts],
    planner: PlannerName | Planner = "memferry",
    gpu_bytes: int | None = None,
    gradient_reserve: float = 1.0,
) -> Plan:
    """Plan one iteration.

    ``planner``: "memferry" (the paper's algorithm 1), "optimal", or "zero-offload" (every layer is copied, for
    comparison); or a function that returns a mode for each layer's costs, which are then used unchanged. ``gpu_bytes``:
    for parameters on the GPU, None for no limit; copied layers are dropped to fit, first those that cost the least time
    per byte. ``gradient_reserve``: the share of all gradient bytes that may stay on the GPU, 0 to 1.

    Raises GpuBudgetError if ``gpu_bytes`` is less than the largest layer, or than what "zero-offload" or the function
    copies, ValueError for an unknown planner or a reserve outside 0 to 1, and TypeError or ValueError for a function
    that does not return one mode for each layer.
    """
    check_settings(planner, gradient_reserve)
    check_costs(costs)
    gpu_bytes = parse_size(gpu_bytes, "gpu_bytes")
    modes = _given_by(planner, costs) if callable(planner) else _PLANNERS[planner](costs)
    if gpu_bytes is not None:
        modes = _within(costs, modes, gpu_bytes, planner)
    sizes = [layer.nbytes for layer in costs]
    room = math.floor(gradient_reserve * sum(sizes))
    stay = range(len(costs)) if gradient_reserve == 1 else stay_on_gpu(sizes, _waits(costs), room)
    host = tuple(i for i in range(len(costs)) if i not in stay)
    if not callable(planner) and planner != "zero-offload":
        modes = admit(costs, modes, math.inf if gpu_bytes is None else gpu_bytes - _on_gpu(costs, modes))
        modes = without_useless(costs, modes, host)
    return Plan(modes, simulate(costs, modes), host)


def _given_by(planner: Planner, costs: Sequence[LayerCosts]) -> tuple[str, ...]:
    """Return a function's modes. TypeError, or ValueError, if they are not one mode for each layer."""
    modes = planner(costs)
    if isinstance(modes, str) or not isinstance(modes, Sequence):
        raise TypeError(f"the planner function returned {kind_of(modes)}: expected a list of modes, one for each layer")
    simulate(costs, modes)
    return tuple(modes)


def _waits(costs: Sequence[LayerCosts]) -> list[float]:
    """Return how long backward waits for each layer's gradient if it moves: for what of the copy compute cannot hide.

    Nothing is computed after the first layer's.
    """
    return [one.copy_s - one.backward_s if layer else one.copy_s for layer, one in enumerate(costs)]


def _on_gpu(costs: Sequence[LayerCosts], modes: Sequence[str]) -> int:
    return sum(layer.nbytes for layer, mode in zip(costs, modes, strict=True) if mode != DHA)


def _within(
    costs: Sequence[LayerCosts], modes: tuple[str, ...], gpu_bytes: int, planner: str | Planner
) -> tuple[str, ...]:
    """Return the modes with as few copies dropped as the bytes require."""
    largest = max((layer.nbytes for layer in costs), default=0)
    if gpu_bytes < largest:
        raise GpuBudgetError(
            f"gpu_bytes is {gpu_bytes}, and the largest layer has {largest}: allow more, or split the layer"
        )
    found = list(modes)
    if (callable(planner) or planner == "zero-offload") and _on_gpu(costs, found) > gpu_bytes:
        name = "the function given" if callable(planner) else "'zero-offload'"
        raise GpuBudgetError(
            f"planner {name} copies {_on_gpu(costs, found)} bytes in all, and gpu_bytes is {gpu_bytes}: "
            f"use planner 'memferry', which reads layers in place, or allow more"
        )

    def price(i: int) -> float:
        without = [*found[:i], DHA, *found[i + 1 :]]
        return (simulate(costs, without) - simulate(costs, found)) / costs[i].nbytes

    while _on_gpu(costs, found) > gpu_bytes:
        found[min((i for i, mode in enumerate(found) if mode == GFGB and costs[i].nbytes > 0), key=price)] = DHA
    return tuple(found)
