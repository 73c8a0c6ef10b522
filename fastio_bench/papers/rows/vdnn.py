"""vDNN's figures, by models of its machine and from the shapes of its networks. It has no tables."""

from __future__ import annotations

from functools import cache, partial

from fastio_bench.papers import vdnn_networks, vdnn_six
from fastio_bench.papers.offload_simulated import TITAN_X
from fastio_bench.papers.rows.row import NOTHING, Row, cell
from fastio_bench.papers.vdnn_shapes import alexnet, six, vgg
from fastio_bench.papers.vdnn_traffic import traffic

_NAME = "vDNN"
_GB = 1e9
_SIMULATE = "fastio-bench offload --simulate"
_WORKSPACES = "ours with workspaces by a model of the fastest algorithms"
_MANAGED = "of what vDNN manages: the classifier's weights are left out"
_BETWEEN = "with an algorithm between both, whose time is assumed: without it 22 % are lost at most"
_FITTED = "how slow memory-optimal algorithms are is fitted to this"
_ALL, _DYNAMIC = "vdnn-all (m)", "vdnn-dyn"
_networks = cache(vdnn_networks.networks)


def _network(convolutions: int, batch: int, way: str) -> vdnn_networks.Network:
    name = f"VGG-{convolutions}"
    return next(one for one in _networks() if (one.name, one.batch, one.way) == (name, batch, way))


def _average(number: int) -> float:
    """Average memory that vdnn-all (m) saves on one of the six networks, %."""
    own = vdnn_six.simulated(_ALL)[number]
    return 100 * (1 - own.average_nbytes / own.baseline_nbytes)


def _most_saved() -> float:
    """Of the most memory that VGG-16 needs at batch 128, what vdnn-all (m) saves, %."""
    own = _network(16, 128, _ALL)
    return 100 * (1 - own.most_nbytes / own.baseline_nbytes)


def rows() -> list[Row]:
    """All of them, in the paper's order."""
    memory = {  # figure 11
        _ALL: "vDNN-all, memory-optimal algorithms",
        "vdnn-all (p)": "vDNN-all, performance-optimal algorithms",
        "vdnn-conv (p)": "vDNN-conv, performance-optimal algorithms",
        _DYNAMIC: "vDNN-dyn",
    }
    speed = {  # figure 14
        _ALL: "vDNN-all, memory-optimal algorithms",
        "vdnn-conv (m)": "vDNN-conv, memory-optimal algorithms",
        _DYNAMIC: "vDNN-dyn",
    }
    return [
        Row(_NAME, "figure 1", "memory of AlexNet, GB", 1.1, lambda: alexnet().baseline_nbytes / _GB,
            reason=_WORKSPACES),
        Row(_NAME, "figure 1", "memory of VGG-16, batch 128, GB (section V-C)", 15.0,
            lambda: vgg(128).baseline_nbytes / _GB, reason=_WORKSPACES),
        Row(_NAME, "figure 1", "memory of VGG-16, batch 256, GB", 28.0, lambda: vgg(256).baseline_nbytes / _GB,
            reason=_WORKSPACES),
        Row(_NAME, "figure 1", "memory that no layer uses at a time, at least %", 53.0,
            lambda: min(map(vdnn_six.unused, six())), reason=_WORKSPACES),
        Row(_NAME, "figure 1", "memory that no layer uses at a time, at most %", 79.0,
            lambda: max(map(vdnn_six.unused, six())), reason=_WORKSPACES),
        Row(_NAME, "figures 2-3", "drawings", by=NOTHING),
        Row(_NAME, "figure 4", "memory of AlexNet beside its classifier's, %", 81.0,
            lambda: vdnn_six.features(alexnet()), reason=_WORKSPACES),
        Row(_NAME, "figure 4", "memory of VGG-16, batch 256, beside its classifier's, %", 96.0,
            lambda: vdnn_six.features(vgg(256)), reason=_WORKSPACES),
        Row(_NAME, "figure 5", "VGG-16, batch 256: convolutions' maps over their weights, x (an order of magnitude)",
            10.0, lambda: vdnn_six.maps_over_weights(vgg(256))),
        Row(_NAME, "figure 6", "AlexNet: reuse distance of the first layer, more than ms", 60.0,
            lambda: 1e3 * vdnn_six.reuse_seconds(alexnet()), reason="ours at the GPU's peak rates"),
        Row(_NAME, "figure 6", "VGG-16, batch 64: reuse distance of the first layer, more than ms", 1200.0,
            lambda: 1e3 * vdnn_six.reuse_seconds(vgg(64)), reason="ours at the GPU's peak rates"),
        Row(_NAME, "figures 7-10", "drawings and an algorithm", by=NOTHING),
        *(
            Row(_NAME, "figure 11", f"{way}: memory saved, {what} %", cell("vdnn-11", theirs, column),
                partial(vdnn_six.saved, way, column == 2), reason=_MANAGED)
            for way, theirs in memory.items() for what, column in (("of the most,", 1), ("of the average,", 2))
        ),
        *(
            Row(_NAME, "figure 11", f"{network}: average memory that {_ALL} saves, % (section VII)", theirs,
                partial(_average, number), reason=_MANAGED)
            for number, (network, theirs) in enumerate((("AlexNet", 89.0), ("OverFeat", 91.0), ("GoogLeNet", 95.0)))
        ),
        Row(_NAME, "figure 11", f"VGG-16, batch 256: average memory that {_ALL} saves, % (section VII)", 90.0,
            partial(_average, 5), reason=_MANAGED),
        Row(_NAME, "figure 11", f"VGG-16, batch 128: the most memory of {_ALL}, GB", 4.8,
            lambda: _network(16, 128, _ALL).most_nbytes / _GB, line=_SIMULATE, reason=_MANAGED),
        Row(_NAME, "figure 11", f"VGG-16, batch 128: the most memory that {_ALL} saves, % (sections V-A and V-C)",
            100 * (1 - 4.8 / 15), _most_saved,
            reason="at the most, ours has the next convolution's input beside the first pool's maps: without it, 70 %"),
        Row(_NAME, "figure 12", f"VGG-16, batch 256: moved by {_ALL}, up to GB", 16.0,
            lambda: _network(16, 256, _ALL).moved_nbytes / _GB, line=_SIMULATE),
        Row(_NAME, "figure 13", "the GPU's memory bandwidth that offloading adds, at most %",
            cell("vdnn-13", "offloading, at most what PCIe moves", 2),
            lambda: 100 * max(one.added for one in traffic()) / TITAN_X.memory_bandwidth, line=_SIMULATE,
            reason="theirs by PCIe's maximum, ours by its average of 12.8 GB/s"),
        *(
            Row(_NAME, "figure 14", f"{way}: throughput lost {what}, %", cell("vdnn-14", theirs, column),
                partial(vdnn_six.lost, way, column == 2), reason=_FITTED if way != _DYNAMIC else _BETWEEN)
            for way, theirs in speed.items() for what, column in (("on average", 1), ("at most", 2))
        ),
        Row(_NAME, "figure 15", "416 convolutions: memory of the baseline, GB", cell("vdnn-15", "416", 1),
            lambda: _network(416, 32, _DYNAMIC).baseline_nbytes / _GB, line=_SIMULATE, reason=_WORKSPACES),
        Row(_NAME, "figure 15", "416 convolutions: GPU memory with vdnn-dyn, at most GB", cell("vdnn-15", "416", 2),
            lambda: _network(416, 32, _DYNAMIC).most_nbytes / _GB, line=_SIMULATE, reason=_MANAGED),
        Row(_NAME, "section V-D", "vdnn-dyn: the most power over plain training's, at most +%", 7.0,
            reason="needs a GPU and its power meter; a model needs the power of each kernel, which shapes do not tell"),
    ]  # fmt: skip
