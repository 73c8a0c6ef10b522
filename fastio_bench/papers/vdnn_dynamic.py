"""vDNN's dynamic policy (section III-C): offload no more, and compute no slower, than memory requires. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.vdnn import Offloading
from fastio_bench.papers.vdnn_iteration import Configuration, Layer, fastest, least, resident


@dataclass(frozen=True)
class Dynamic:
    """The configuration to train with, and every pass that was tried, in order, with whether it fitted."""

    configuration: Configuration
    passes: tuple[tuple[Configuration, bool], ...]


def dynamic(
    layers: tuple[Layer, ...], budget: int, fixed_nbytes: int = 0, fits: Callable[[Configuration], bool] | None = None
) -> Dynamic:
    """Choose the configuration by the paper's profiling passes.

    ``budget`` is all memory in bytes, and ``fixed_nbytes`` the part taken by weights and the like. ``fits`` runs a real
    pass (train one iteration; False for out of memory); without it :func:`resident` decides.

    all(m) comes first: if it does not fit, nothing trains. Then none(p), conv(p), all(p); then, under conv and under
    all, the fastest algorithm per layer that the budget allows; then all(m). (p) is the fastest algorithm everywhere,
    (m) the one with the least workspace. Raises InfeasibleBudget if all(m) does not fit.
    """
    fast, small = fastest(layers), least(layers)
    smallest = Configuration("all", small)
    tried: list[tuple[Configuration, bool]] = []
    for configuration in (
        smallest,
        Configuration("none", fast),
        Configuration("conv", fast),
        Configuration("all", fast),
        Configuration("conv", _downgraded(layers, "conv", small, budget - fixed_nbytes)),
        Configuration("all", _downgraded(layers, "all", small, budget - fixed_nbytes)),
    ):
        peak = fixed_nbytes + max((step.nbytes for step in resident(layers, configuration)), default=0)
        tried.append((configuration, peak <= budget if fits is None else fits(configuration)))
        if configuration is smallest and not tried[-1][1]:
            cure = "make the batch smaller: vDNN has no way to train with less"
            raise InfeasibleBudget("vDNN-all with the least workspace", peak, budget, cure)
        if configuration is not smallest and tried[-1][1]:
            return Dynamic(configuration, tuple(tried))
    return Dynamic(smallest, tuple(tried))


def _downgraded(
    layers: tuple[Layer, ...], offloading: Offloading, small: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """Return each layer's fastest algorithm whose workspace fits the budget, else the one with the least workspace."""
    bare = [0] * len(layers)
    for step in resident(layers, Configuration(offloading, small)):
        own = layers[step.layer].algorithms[small[step.layer]].workspace_nbytes
        bare[step.layer] = max(bare[step.layer], step.nbytes - own)
    chosen = []
    for layer, nbytes, smallest in zip(layers, bare, small, strict=True):
        able = [a for a, each in enumerate(layer.algorithms) if nbytes + each.workspace_nbytes <= budget]
        chosen.append(min(able, key=lambda a: layer.algorithms[a].time_s, default=smallest))
    return tuple(chosen)
