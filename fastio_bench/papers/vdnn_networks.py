"""Simulates vDNN's machine: memory and iterations of its VGG-style networks by its policies. Nothing is measured.

By the model of :mod:`fastio_bench.papers.vdnn_six`, which has all six networks of the paper's figures 11 and 14.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio_bench.papers.capacity import largest
from fastio_bench.papers.offload_simulated import TITAN_X, Capacity
from fastio_bench.papers.vdnn_shapes import vgg
from fastio_bench.papers.vdnn_six import WAYS, on_titan_x

_NETWORKS = ((16, 64), (16, 128), (16, 256), (16, 32), (116, 32), (216, 32), (316, 32), (416, 32))
_ALL, _DYNAMIC = "vdnn-all (m)", "vdnn-dyn"
_SLACK, _MOST_BATCH = 0.02, 1 << 14
_SAYS = {  # vDNN, sections V-A, V-C and V-E
    (16, 128, _ALL): "4.8 GB; 15 GB without it, by the fastest algorithms; 61 % slower",
    (16, 256, _ALL): "28 GB with the fastest algorithms; up to 16 GB moved",
    (16, 256, _DYNAMIC): "82 % of the throughput",
    (16, 32, _ALL): "4.9 GB",
    (416, 32, _ALL): "67.1 GB",
    (416, 32, _DYNAMIC): "at most 4.2 GB, no noticeable loss",
}


@dataclass(frozen=True)
class Network:
    """A simulated network of vDNN on its machine by one of its policies: bytes, and the iteration over plain.

    ``baseline_nbytes``: a network-wide allocation, with workspaces. ``most_nbytes`` and ``average_nbytes``: of what
    vDNN manages, the layers that extract features, over their forward and backward steps. ``peak_nbytes``: of
    everything. ``paper``: the paper's statement. ``slowdown`` is None if the machine has no room for the peak.
    """

    name: str
    batch: int
    way: str
    baseline_nbytes: int
    moved_nbytes: int
    peak_nbytes: int
    most_nbytes: int
    average_nbytes: int
    slowdown: float | None
    paper: str


def networks() -> list[Network]:
    """Every network by every policy."""
    found = []
    for convolutions, batch in _NETWORKS:
        network = vgg(batch, convolutions)
        for way, policy in WAYS.items():
            own = on_titan_x(network, policy)
            found.append(
                Network(
                    network.name,
                    batch,
                    way,
                    own.baseline_nbytes,
                    own.moved_nbytes,
                    own.peak_nbytes,
                    own.most_nbytes,
                    own.average_nbytes,
                    own.slowdown if own.runs else None,
                    _SAYS.get((convolutions, batch, way), ""),
                )
            )
    return found


def capacities() -> list[Capacity]:
    """The largest batches of VGG-16 on vDNN's machine, by every policy: by the same model as its memory and time."""
    return [
        Capacity(
            TITAN_X.name,
            way,
            largest(lambda batch, way=way: _slowdown(batch, way) is not None, _MOST_BATCH),  # type: ignore[misc]
            largest(lambda batch, way=way: (_slowdown(batch, way) or 2) <= 1 + _SLACK, _MOST_BATCH),  # type: ignore[misc]
        )
        for way in WAYS
    ]


def _slowdown(batch: int, way: str) -> float | None:
    """The iteration over a plain one; None if it does not run."""
    try:
        own = on_titan_x(vgg(batch), WAYS[way])
    except InfeasibleBudget:
        return None
    return own.slowdown if own.runs else None
