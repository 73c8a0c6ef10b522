"""vDNN's figures, by models of its machine and from the shapes of its networks. It has no tables."""

from __future__ import annotations

from functools import cache, partial

from fastio_bench.papers import vdnn_networks, vdnn_six
from fastio_bench.papers.offload_simulated import TITAN_X
from fastio_bench.papers.rows.row import NOTHING, Row, cell
from fastio_bench.papers.vdnn_shapes import alexnet, six, vgg_16
from fastio_bench.papers.vdnn_six import ALL, CONVOLUTIONS, DYNAMIC
from fastio_bench.papers.vdnn_traffic import traffic

_NAME = "vDNN"
_GB = 1e9
_SIMULATE = "fastio-bench offload --simulate"
_NO_WORKSPACE = "theirs has the workspaces of the fastest algorithms"
_WEIGHTS = "ours has no workspaces, and keeps the weights of the classifier"
_networks = cache(vdnn_networks.networks)


def _network(convolutions: int, batch: int, way: str) -> vdnn_networks.Network:
    name = f"VGG-{convolutions}"
    return next(one for one in _networks() if (one.name, one.batch, one.way) == (name, batch, way))


def rows() -> list[Row]:
    """All of them, in the paper's order."""
    every, dynamic = "vDNN-all, memory-optimal algorithms", "vDNN-dyn"
    convolutions = "vDNN-conv, performance-optimal algorithms"
    return [
        Row(_NAME, "figure 1", "memory of AlexNet, GB", 1.1, lambda: alexnet().baseline_nbytes / _GB),
        Row(_NAME, "figure 1", "memory of VGG-16, batch 256, GB", 28.0, lambda: vgg_16(256).baseline_nbytes / _GB,
            reason=_NO_WORKSPACE),
        Row(_NAME, "figure 1", "memory that no layer uses at a time, at least %", 53.0,
            lambda: min(map(vdnn_six.unused, six()))),
        Row(_NAME, "figure 1", "memory that no layer uses at a time, at most %", 79.0,
            lambda: max(map(vdnn_six.unused, six()))),
        Row(_NAME, "figures 2-3", "drawings", by=NOTHING),
        Row(_NAME, "figure 4", "memory of AlexNet beside its classifier's, %", 81.0,
            lambda: vdnn_six.features(alexnet()), reason=_NO_WORKSPACE),
        Row(_NAME, "figure 4", "memory of VGG-16, batch 256, beside its classifier's, %", 96.0,
            lambda: vdnn_six.features(vgg_16(256))),
        Row(_NAME, "figure 5", "VGG-16, batch 256: convolutions' maps over their weights, x (an order of magnitude)",
            10.0, lambda: vdnn_six.maps_over_weights(vgg_16(256))),
        Row(_NAME, "figure 6", "AlexNet: reuse distance of the first layer, more than ms", 60.0,
            lambda: 1e3 * vdnn_six.reuse_seconds(alexnet()), reason="ours at the GPU's peak rates"),
        Row(_NAME, "figure 6", "VGG-16, batch 64: reuse distance of the first layer, more than ms", 1200.0,
            lambda: 1e3 * vdnn_six.reuse_seconds(vgg_16(64)), reason="ours at the GPU's peak rates"),
        Row(_NAME, "figures 7-10", "drawings and an algorithm", by=NOTHING),
        *(
            Row(_NAME, "figure 11", f"{way}: memory saved, {what} %", cell("vdnn-11", theirs, column),
                partial(vdnn_six.saved, way, column == 2), reason=_WEIGHTS)
            for way, theirs in ((ALL, every), (CONVOLUTIONS, convolutions), (DYNAMIC, dynamic))
            for what, column in (("of the most,", 1), ("of the average,", 2))
        ),
        Row(_NAME, "figure 12", "VGG-16, batch 256: moved by vdnn-all, up to GB", 16.0,
            lambda: _network(16, 256, ALL).moved_nbytes / _GB, line=_SIMULATE),
        Row(_NAME, "figure 13", "the GPU's memory bandwidth that offloading adds, at most %",
            cell("vdnn-13", "offloading, at most what PCIe moves", 2),
            lambda: 100 * max(one.added for one in traffic()) / TITAN_X.memory_bandwidth, line=_SIMULATE,
            reason="theirs by PCIe's maximum, ours by its average of 12.8 GB/s"),
        Row(_NAME, "figure 14", "vdnn-dyn: throughput lost on average, %", cell("vdnn-14", dynamic, 1),
            lambda: vdnn_six.lost(DYNAMIC)),
        Row(_NAME, "figure 14", "vdnn-dyn: throughput lost at most, %", cell("vdnn-14", dynamic, 2),
            lambda: vdnn_six.lost(DYNAMIC, most=True)),
        Row(_NAME, "figure 15", "416 convolutions: memory of the baseline, GB", cell("vdnn-15", "416", 1),
            lambda: _network(416, 32, DYNAMIC).baseline_nbytes / _GB, line=_SIMULATE),
        Row(_NAME, "figure 15", "416 convolutions: GPU memory with vdnn-dyn, at most GB", cell("vdnn-15", "416", 2),
            lambda: _network(416, 32, DYNAMIC).peak_nbytes / _GB, line=_SIMULATE),
        Row(_NAME, "section V-D", "vdnn-dyn: the most power over plain training's, at most +%", 7.0,
            reason="nothing here measures a GPU's power"),
    ]  # fmt: skip
