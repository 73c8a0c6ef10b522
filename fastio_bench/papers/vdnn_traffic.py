"""Simulates the GPU memory bandwidth that VGG-16's convolutions need on vDNN's machine (its figure 13)."""

from __future__ import annotations

from dataclasses import dataclass

from fastio.offload.planning.vdnn import CONV
from fastio_bench.papers.offload_simulated import TITAN_X, workload
from fastio_bench.papers.vgg_shapes import vgg

_BATCH = 64  # any: the figures do not depend on it


@dataclass(frozen=True)
class Traffic:
    """A convolution's forward pass, in bytes a second: its ``own`` traffic, and that ``added`` by offloading its input.

    Each value moves once, in the time of the roofline of :mod:`fastio_bench.papers.offload_simulated`. ``share`` is the
    sum over the memory's bandwidth.
    """

    layer: str
    own: float
    added: float
    share: float


def traffic() -> list[Traffic]:
    """The convolutions of VGG-16, in order."""
    found: list[Traffic] = []
    began_s = 0.0
    for layer, activation in zip(vgg(_BATCH)[1:], workload(TITAN_X, _BATCH).activations, strict=True):
        seconds, began_s = activation.ready_s - began_s, activation.ready_s
        if layer.kind == CONV:
            own = (activation.nbytes + layer.nbytes) / seconds
            added = min(TITAN_X.channel_bandwidth, activation.nbytes / seconds)
            share = (own + added) / TITAN_X.memory_bandwidth
            found.append(Traffic(f"convolution {len(found) + 1}", own, added, share))
    return found
