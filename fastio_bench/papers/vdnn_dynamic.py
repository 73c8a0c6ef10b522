"""vDNN's dynamic policy (section III-C): offload no more, and compute no slower, than memory requires. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.vdnn import CONV, Offloading, leaves


@dataclass(frozen=True)
class Algorithm:
    """A way to compute a layer: seconds of forward plus backward, and the workspace in bytes."""

    time_s: float
    workspace_nbytes: int


@dataclass(frozen=True)
class Layer:
    """A layer: its kind, the bytes of its output, the layers whose outputs it reads, and its algorithms."""

    kind: str
    nbytes: int
    inputs: tuple[int, ...] = ()
    algorithms: tuple[Algorithm, ...] = (Algorithm(0.0, 0),)


@dataclass(frozen=True)
class Configuration:
    """What leaves, and the index of the algorithm for each layer."""

    offloading: Offloading
    algorithms: tuple[int, ...]


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
    pass (train one iteration; False for out of memory); without it :func:`usage` decides.

    all(m) comes first: if it does not fit, nothing trains. Then none(p), conv(p), all(p); then, under conv and under
    all, the fastest algorithm per layer that the budget allows; then all(m). (p) is the fastest algorithm everywhere,
    (m) the one with the least workspace. Raises InfeasibleBudget if all(m) does not fit.
    """
    fast = tuple(min(range(len(n.algorithms)), key=lambda a: n.algorithms[a].time_s) for n in layers)
    small = tuple(min(range(len(n.algorithms)), key=lambda a: n.algorithms[a].workspace_nbytes) for n in layers)
    least = Configuration("all", small)
    tried: list[tuple[Configuration, bool]] = []
    for configuration in (
        least,
        Configuration("none", fast),
        Configuration("conv", fast),
        Configuration("all", fast),
        Configuration("conv", _downgraded(layers, "conv", small, budget - fixed_nbytes)),
        Configuration("all", _downgraded(layers, "all", small, budget - fixed_nbytes)),
    ):
        peak = fixed_nbytes + max(usage(layers, configuration), default=0)
        tried.append((configuration, peak <= budget if fits is None else fits(configuration)))
        if configuration is least and not tried[-1][1]:
            cure = "make the batch smaller: vDNN has no way to train with less"
            raise InfeasibleBudget("vDNN-all with the least workspace", peak, budget, cure)
        if configuration is not least and tried[-1][1]:
            return Dynamic(configuration, tuple(tried))
    return Dynamic(least, tuple(tried))


def usage(layers: tuple[Layer, ...], configuration: Configuration) -> list[int]:
    """Return the resident bytes for each layer, the larger of its forward and its backward step.

    Counts the outputs in memory, gradients of outputs from their first to their last use (backward), and the workspace
    of the running layer. What is offloaded is gone when the next layer starts. What is prefetched during a backward
    step is there from the start of that step, as vDNN synchronises it (section III-B).
    """
    bare = _resident(layers, configuration.offloading)
    chosen = zip(layers, configuration.algorithms, strict=True)
    return [nbytes + layer.algorithms[a].workspace_nbytes for nbytes, (layer, a) in zip(bare, chosen, strict=True)]


def _resident(layers: tuple[Layer, ...], offloading: Offloading) -> list[int]:
    """Return what :func:`usage` counts, without the workspaces."""
    last = last_consumers([layer.inputs for layer in layers])
    ends = [b if reader is None else reader for b, reader in enumerate(last)]
    leaving = {b for layer in layers if leaves(layer.kind, offloading) for b in layer.inputs}
    resident = [
        sum(layers[b].nbytes for b in range(n + 1) if b not in leaving or ends[b] >= n) for n in range(len(layers))
    ]
    kinds = [layer.kind for layer in layers]
    out = [any(b in leaving and ends[b] == n for b in layer.inputs) for n, layer in enumerate(layers)]
    back = [False] * len(layers)
    present = set(range(len(layers))) - leaving
    for n in reversed(range(len(layers))):
        ahead = next_prefetch(n, kinds, out, back)
        for fetched in (n,) if ahead is None else (n, ahead):
            back[fetched] = True
            present.update(layers[fetched].inputs)
        outputs = sum(layers[b].nbytes for b in present if b <= n)
        gradients = sum(layers[b].nbytes for b in range(n + 1) if layers[b].inputs and ends[b] >= n)
        resident[n] = max(resident[n], outputs + gradients)
    return resident


def _downgraded(
    layers: tuple[Layer, ...], offloading: Offloading, small: tuple[int, ...], budget: int
) -> tuple[int, ...]:
    """Return each layer's fastest algorithm whose workspace fits the budget, else the one with the least workspace."""
    chosen = []
    for layer, nbytes, least in zip(layers, _resident(layers, offloading), small, strict=True):
        able = [a for a, each in enumerate(layer.algorithms) if nbytes + each.workspace_nbytes <= budget]
        chosen.append(min(able, key=lambda a: layer.algorithms[a].time_s, default=least))
    return tuple(chosen)


def last_consumers(inputs: Sequence[Sequence[int]]) -> list[int | None]:
    """Return, for each layer, the last layer of the forward pass that reads its output; None if no layer does.

    ``inputs[n]`` are the layers whose outputs layer n reads, all before n (a join reads several; at a fork several
    layers read one). In a fixed order this equals the reference counts of figure 3: an output may leave when its last
    reader is done, not its first.
    """
    counts = [0] * len(inputs)
    for reads in inputs:
        for producer in reads:
            counts[producer] += 1
    last: list[int | None] = [None] * len(inputs)
    for layer, reads in enumerate(inputs):
        for producer in reads:
            if producer >= layer:
                raise ValueError(f"layer {layer} reads the output of layer {producer}: expected an earlier layer")
            counts[producer] -= 1
            if counts[producer] == 0:
                last[producer] = layer
    return last


def next_prefetch(
    current: int, kinds: Sequence[str], offloaded: Sequence[bool], prefetched: Sequence[bool]
) -> int | None:
    """Return the layer whose input to bring back during the backward step of layer ``current``.

    It is the nearest layer before ``current`` whose input is out, searched no further than the nearest convolution:
    earlier prefetches would fill memory with data that is used late. The caller marks it as prefetched. Figure 10's
    listing tests for a convolution (line 14) after the loop ends; its caption and the text of section III-B put the
    test inside the loop, as here.
    """
    for layer in range(current - 1, -1, -1):
        if offloaded[layer] and not prefetched[layer]:
            return layer
        if kinds[layer] == CONV:
            return None
    return None
