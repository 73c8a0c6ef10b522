"""vDNN's policies on its six networks and its machine (figures 1, 4 to 6, 11, 12, 14): memory and time. Not measured.

Memory that a policy saves (figure 11): what vDNN manages, the layers that extract features with their weights, over a
network-wide allocation of everything (figure 1). With the classifier's weights, which are a fifth of that, AlexNet's
average could not be 89 % less.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from statistics import mean
from typing import NamedTuple

from fastio.offload.planning.vdnn import CONV, POOL, Offloading
from fastio_bench.papers.offload_simulated import TITAN_X
from fastio_bench.papers.vdnn_dynamic import dynamic
from fastio_bench.papers.vdnn_iteration import Configuration, fastest, iteration, least
from fastio_bench.papers.vdnn_shapes import JOIN, Shaped, six
from fastio_bench.papers.vgg_shapes import ITEM

_FEATURES = (CONV, POOL, JOIN)


class Way(NamedTuple):
    """A policy, and whether convolutions take the memory-optimal (m) or the performance-optimal algorithms (p)."""

    offloading: Offloading
    smallest: bool


WAYS: dict[str, Way | None] = {
    "vdnn-all (m)": Way("all", True),
    "vdnn-all (p)": Way("all", False),
    "vdnn-conv (m)": Way("conv", True),
    "vdnn-conv (p)": Way("conv", False),
    "vdnn-dyn": None,
}
"""By name. The last one chooses both."""


@dataclass(frozen=True)
class Kept:
    """A policy on a network.

    ``most_nbytes`` and ``average_nbytes``: of the layers that extract features, over their forward and backward steps.
    ``baseline_nbytes``: a network-wide allocation for the fastest algorithms. ``peak_nbytes``: with the classifier and
    the gradients of weights, and ``runs``: whether the machine has so much. ``slowdown``: the time over that of the
    fastest algorithms without offload on a machine with memory for everything, whether it runs or not.
    """

    configuration: Configuration
    most_nbytes: int
    average_nbytes: int
    baseline_nbytes: int
    moved_nbytes: int
    peak_nbytes: int
    runs: bool
    slowdown: float


def reuse_seconds(network: Shaped) -> float:
    """From the end of the first layer's forward pass to the begin of its backward pass (figure 6)."""
    return 3 * sum(network.forward_seconds[2:])


def unused(network: Shaped) -> float:
    """The share of a network-wide allocation that no layer uses while any one computes, in % (figure 1)."""
    most = max(network.used_nbytes(n) for n in range(1, len(network.layers)))
    return 100 * (1 - most / network.baseline_nbytes)


def features(network: Shaped) -> float:
    """The share of a network-wide allocation that is not the classifier's weights and outputs, in % (section III)."""
    return 100 * (1 - network.classifier_nbytes / network.baseline_nbytes)


def maps_over_weights(network: Shaped) -> float:
    """Bytes of the convolutions' inputs and outputs over those of their weights (figure 5)."""
    layers = network.layers
    convolutions = [n for n, layer in enumerate(layers) if layer.kind == CONV]
    maps = sum(layers[n].nbytes + sum(layers[producer].nbytes for producer in layers[n].inputs) for n in convolutions)
    return maps / sum(ITEM * network.weights[n] for n in convolutions)


def on_titan_x(network: Shaped, way: Way | None) -> Kept:
    """Return a policy on a network. Raises InfeasibleBudget if vdnn-dyn finds no configuration that fits."""
    layers, fixed = network.layers, 2 * network.parameter_nbytes
    fast, small = fastest(layers), least(layers)
    if way is None:
        chosen = dynamic(layers, TITAN_X.memory, fixed).configuration
    else:
        chosen = Configuration(way.offloading, small if way.smallest else fast)
    bandwidth = TITAN_X.channel_bandwidth
    whole, own = (iteration(layers, chosen, bandwidth, kinds) for kinds in (None, _FEATURES))
    plain = iteration(layers, Configuration("none", fast), bandwidth)
    weights = network.feature_weights_nbytes
    return Kept(
        chosen,
        own.peak_nbytes + weights,
        round(own.average_nbytes) + weights,
        network.baseline_nbytes,
        whole.moved_nbytes,
        whole.peak_nbytes + fixed,
        whole.peak_nbytes + fixed <= TITAN_X.memory,
        whole.seconds / plain.seconds,
    )


@cache
def simulated(way: str) -> list[Kept]:
    """A policy on each of the six networks, in the order of :func:`fastio_bench.papers.vdnn_shapes.six`."""
    return [on_titan_x(network, WAYS[way]) for network in six()]


@dataclass(frozen=True)
class Means:
    """A policy over the six networks, in %: memory saved at its most and on average, throughput lost on average."""

    way: str
    most: float
    average: float
    lost: float


def means() -> list[Means]:
    """Every policy."""
    return [Means(way, saved(way), saved(way, average=True), lost(way)) for way in WAYS]


def saved(way: str, average: bool = False) -> float:
    """The mean over the six networks, in % of a network-wide allocation."""
    each = ((one.average_nbytes if average else one.most_nbytes) / one.baseline_nbytes for one in simulated(way))
    return 100 * (1 - mean(each))


def lost(way: str, most: bool = False) -> float:
    """Throughput lost against plain training that has all the memory, in %: the mean, or the most."""
    each = [100 * (1 - 1 / one.slowdown) for one in simulated(way)]
    return max(each) if most else mean(each)
