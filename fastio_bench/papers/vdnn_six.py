"""Simulates vDNN's policies on its six networks and its machine: memory, and the iteration over plain. Not measured.

Layers take the time of a roofline over their shapes. Convolutions have one algorithm and no workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from statistics import mean

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.schedule import Policy
from fastio.offload.planning.vdnn import CLASSIFIER, CONV, Offloading
from fastio_bench.papers.capacity import Workload, iterate
from fastio_bench.papers.offload_simulated import TITAN_X, plain
from fastio_bench.papers.vdnn_dynamic import Configuration, dynamic, last_consumers, usage
from fastio_bench.papers.vdnn_shapes import Shaped, six
from fastio_bench.papers.vgg_shapes import ITEM

ALL, CONVOLUTIONS, DYNAMIC = "vdnn-all", "vdnn-conv", "vdnn-dyn"
_POLICIES: Mapping[Offloading, str | Policy] = {"none": plain, "conv": CONVOLUTIONS, "all": ALL}


@dataclass(frozen=True)
class Kept:
    """A policy on a network: the memory saved of a network-wide allocation, in %, at its peak and over the layers.

    ``slowdown``: the iteration over plain; None if it does not run.
    """

    most: float
    average: float
    slowdown: float | None


def seconds(network: Shaped) -> list[float]:
    """Each layer's forward pass: the longer of its operations and of its values moved once."""
    found = []
    for layer, operations in zip(network.layers, network.operations, strict=True):
        moved = layer.nbytes + sum(network.layers[producer].nbytes for producer in layer.inputs)
        busy = max(operations / TITAN_X.operations_per_s, moved / TITAN_X.memory_bandwidth)
        found.append(busy if layer.inputs else 0.0)
    return found


def workload(network: Shaped) -> Workload:
    """The iteration; an activation is ready when its last reader is done. Backward takes twice as long as forward."""
    done = list(accumulate(seconds(network)))
    layers, activations = network.layers, []
    for producer, reader in enumerate(last_consumers([layer.inputs for layer in layers])):
        if reader is not None:
            kinds = {layer.kind for layer in layers if producer in layer.inputs}
            kind = CONV if CONV in kinds else layers[reader].kind
            nbytes = layers[producer].nbytes
            activations.append(ActivationProfile(nbytes, nbytes / TITAN_X.channel_bandwidth, 1.0, done[reader], kind))
    activations.sort(key=lambda activation: activation.ready_s)
    fixed = 2 * network.parameter_nbytes
    return Workload(tuple(activations), done[-1], 2 * done[-1], fixed, network.gradient_nbytes)


def reuse_seconds(network: Shaped) -> float:
    """From the end of the first layer's forward pass to the begin of its backward pass (figure 6)."""
    return 3 * sum(seconds(network)[2:])


def unused(network: Shaped) -> float:
    """The share of a network-wide allocation that no layer uses while any one computes, in % (figure 1)."""
    most = max(network.used_nbytes(n) for n in range(1, len(network.layers)))
    return 100 * (1 - most / network.baseline_nbytes)


def features(network: Shaped) -> float:
    """The share of a network-wide allocation that is not the classifier's weights and outputs, in % (section III)."""
    weights = zip(network.layers, network.weights, strict=True)
    parameters = sum(2 * ITEM * count for layer, count in weights if layer.kind == CLASSIFIER)
    outputs = sum(network.layers[n].nbytes for n in network.kept if network.layers[n].kind == CLASSIFIER)
    return 100 * (1 - (parameters + outputs) / network.baseline_nbytes)


def maps_over_weights(network: Shaped) -> float:
    """Bytes of the convolutions' inputs and outputs over those of their weights (figure 5)."""
    layers = network.layers
    convolutions = [n for n, layer in enumerate(layers) if layer.kind == CONV]
    maps = sum(layers[n].nbytes + sum(layers[producer].nbytes for producer in layers[n].inputs) for n in convolutions)
    return maps / sum(ITEM * network.weights[n] for n in convolutions)


@cache
def simulated(way: str) -> list[Kept]:
    """The policy on each of the six networks, in the order of :func:`fastio_bench.papers.vdnn_shapes.six`."""
    return [_kept(network, way) for network in six()]


def saved(way: str, average: bool = False) -> float:
    """The mean over the six networks, in %."""
    return mean(one.average if average else one.most for one in simulated(way))


def lost(way: str, most: bool = False) -> float:
    """Throughput lost against plain training that has all the memory, in %: the mean, or the most. Of what runs."""
    each = [100 * (1 - 1 / one.slowdown) for one in simulated(way) if one.slowdown is not None]
    return max(each) if most else mean(each)


def _kept(network: Shaped, way: str) -> Kept:
    fixed, iteration = 2 * network.parameter_nbytes, workload(network)
    slowdowns = {offloading: _slowdown(iteration, policy) for offloading, policy in _POLICIES.items()}
    chosen: Offloading = "conv" if way == CONVOLUTIONS else "all"
    if way == DYNAMIC:
        found = dynamic(network.layers, TITAN_X.memory, fixed, lambda tried: slowdowns[tried.offloading] is not None)
        chosen = found.configuration.offloading
    resident = usage(network.layers, Configuration(chosen, (0,) * len(network.layers)))
    most, average = (100 * (1 - (one + fixed) / network.baseline_nbytes) for one in (max(resident), mean(resident)))
    return Kept(most, average, slowdowns[chosen])


def _slowdown(iteration: Workload, policy: str | Policy) -> float | None:
    try:
        return iterate(iteration, TITAN_X.memory, policy).slowdown
    except InfeasibleBudget:
        return None
