"""Simulates vDNN's machine: memory and iterations of its VGG-style networks by its policies. Nothing is measured.

It leaves out the workspaces of convolutions, since the paper has no table of them, and so the choice between
algorithms. :mod:`fastio_bench.papers.vdnn_six` has the six networks of the paper's figures 11 and 14.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.schedule import Policy
from fastio.offload.planning.vdnn import Offloading
from fastio_bench.papers.capacity import iterate
from fastio_bench.papers.offload_simulated import TITAN_X, plain, workload
from fastio_bench.papers.vdnn_dynamic import Configuration, dynamic, usage
from fastio_bench.papers.vgg_shapes import baseline_nbytes, input_nbytes, parameter_nbytes, vgg

_ALL, _CONV, _DYN = "vdnn-all", "vdnn-conv", "vdnn-dyn"
_POLICIES: dict[Offloading, str | Policy] = {"none": plain, "conv": _CONV, "all": _ALL}
_NETWORKS = ((16, 64), (16, 128), (16, 256), (16, 32), (116, 32), (216, 32), (316, 32), (416, 32))
_SAYS = {  # vDNN, sections V-A, V-C and V-E
    (16, 128, _ALL): "15 GB with the fastest algorithms; vDNN-all (m) 4.8 GB, 61 % slower",
    (16, 256, _ALL): "28 GB with the fastest algorithms; up to 16 GB moved",
    (16, 256, _DYN): "82 % of the throughput",
    (16, 32, _ALL): "4.9 GB",
    (416, 32, _ALL): "67.1 GB",
    (416, 32, _DYN): "at most 4.2 GB, no noticeable loss",
}


@dataclass(frozen=True)
class Network:
    """A simulated network of vDNN on its machine by one of its policies: bytes, and the iteration over plain.

    ``weights_nbytes`` are those of weights and their gradients, which the baseline and the peak both include.
    ``average_nbytes``: the mean over the layers, each in its forward or backward step, whichever holds more. ``paper``:
    the paper's statement. ``slowdown`` is None if it does not run.
    """

    name: str
    batch: int
    way: str
    baseline_nbytes: int
    weights_nbytes: int
    moved_nbytes: int
    peak_nbytes: int
    average_nbytes: int
    slowdown: float | None
    paper: str


def networks() -> list[Network]:
    """Every network by every policy."""
    return [network for convolutions, batch in _NETWORKS for network in _by_policy(convolutions, batch)]


def _by_policy(convolutions: int, batch: int) -> Iterator[Network]:
    layers, weights = vgg(batch, convolutions), 2 * parameter_nbytes(convolutions)
    slowdowns = {offloading: _slowdown(convolutions, batch, offloading) for offloading in _POLICIES}
    chosen = dynamic(layers, TITAN_X.memory, weights, lambda tried: slowdowns[tried.offloading] is not None)
    offloadings: dict[str, Offloading] = {_ALL: "all", _CONV: "conv", _DYN: chosen.configuration.offloading}
    for way, offloading in offloadings.items():
        resident = usage(layers, Configuration(offloading, (0,) * len(layers)))
        yield Network(
            f"VGG-{convolutions}",
            batch,
            way,
            baseline_nbytes(batch, convolutions),
            weights,
            input_nbytes(layers, offloading),
            max(resident) + weights,
            round(mean(resident)) + weights,
            slowdowns[offloading],
            _SAYS.get((convolutions, batch, way), ""),
        )


def _slowdown(convolutions: int, batch: int, offloading: Offloading) -> float | None:
    """The iteration over a plain one; None if it does not run."""
    try:
        return iterate(workload(TITAN_X, batch, convolutions), TITAN_X.memory, _POLICIES[offloading]).slowdown
    except InfeasibleBudget:
        return None
