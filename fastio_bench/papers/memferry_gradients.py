"""Simulates gradient offload in two ways: copied beside backward, as Hybrid does, and written by kernels.

The latter is the MemFerry paper's (section IV-D): the GPU's kernels write gradients to host memory, over PCIe. Nothing
is measured here, but the H100's link was.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from fastio.hybrid.planning.costs import DHA
from fastio.hybrid.planning.plan import plan
from fastio.hybrid.simulation.machines import A100, V100, Machine, Work, costs
from fastio_bench.papers.memferry_networks import A100_NETWORKS, ASSUMED, ITEM, V100_NETWORKS, Network
from fastio_bench.papers.memferry_simulated import OFFLOADED, Simulated, simulated, update_seconds
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

H100 = Machine(
    "H100, PCIe 5.0",
    247e12,
    3.35e12,
    55e9,
    100e9,
    sources=(
        "half of 495 TFLOPS in TF32 and 3.35 TB/s: NVIDIA's data sheet of the H100 SXM; the half is an assumption",
        "copies at 55 GB/s and kernels that write host memory at 52.2 GB/s: measured on an H100",
        "100 GB/s of host memory for the update: an assumption",
    ),
)
_SETTINGS = ((A100, A100_NETWORKS, 12e9), (V100, V100_NETWORKS, 12e9), (H100, A100_NETWORKS, 52.2e9))
"""Machine, networks, and the bytes per second at which kernels write host memory."""


@cache
def both() -> list[tuple[Simulated, float]]:
    """Every network on every machine, and the seconds of its iteration with gradients written by kernels."""
    return [
        (simulated(machine, network), written(machine, network, bandwidth))
        for machine, networks, bandwidth in _SETTINGS
        for network in networks
    ]


def written(machine: Machine, network: Network, write_bandwidth: float) -> float:
    """The seconds of an iteration whose kernels write all gradients to host memory: they are half of backward."""
    works = network.layers()
    layers = [costs(work, machine) for work in works]
    chosen = plan(layers, gradient_reserve=0.0)
    backward_s = sum(
        _written(layer.backward_dha_s if mode == DHA else layer.backward_s, layer.nbytes, write_bandwidth)
        for layer, mode in zip(layers, chosen.modes, strict=True)
    )
    return chosen.forward_s + backward_s + sum(update_seconds(machine, works))


def _written(backward_s: float, nbytes: int, write_bandwidth: float) -> float:
    """The seconds of a layer's backward whose second half writes the gradient over the link."""
    half = backward_s / 2
    return half + max(half, nbytes / write_bandwidth)


def by_layer() -> Iterator[tuple[str, str, float, float]]:
    """Machine, layer, and seconds for which its backward keeps the GPU: if copied beside, and if written by kernels.

    The paper's four kinds of layers, of BERT-base, batch 8 of 128 tokens; the convolution is VGG-16's last, batch 8.
    """
    embedding, norm, _, _, _, linear, *_ = A100_NETWORKS[0].layers()
    weights, rows = 512 * 512 * 9, 8 * 14 * 14
    convolution = Work(
        (weights + 512) * ITEM, (weights + 512) * ITEM, 2.0 * rows * weights, 2 * rows * 512 * ITEM, rows
    )
    kinds = {"Linear": linear, "Embedding": embedding, "LayerNorm": norm, "Conv2d": convolution}
    for machine, _, bandwidth in _SETTINGS:
        for kind, work in kinds.items():
            layer = costs(work, machine)
            yield machine.name, kind, layer.backward_s, _written(layer.backward_s, layer.nbytes, bandwidth)


def tables(found: object) -> list[ResultTable]:
    """The table of all of them."""
    rows: list[list[Cell]] = []
    for one, written_s in both():
        copied_s = one.timelines[OFFLOADED].iteration_s
        rows.append([one.machine.name, one.network.name, copied_s * 1e3, written_s * 1e3, written_s / copied_s])
    return [
        ResultTable(
            "hybrid-gradients",
            "simulated: an iteration with all gradients in host memory, copied beside backward or written by kernels",
            ("machine", "network", "copied ms*", "written ms*", "written over copied x*"),
            rows,
            SIMULATED,
            "",
            "; ".join(dict.fromkeys((ASSUMED, *A100.sources, *V100.sources, *H100.sources))),
        ),
        ResultTable(
            "hybrid-gradients-layers",
            "simulated: backward of a layer whose gradient goes to host memory, copied beside it or written by kernels",
            ("machine", "layer", "copied us*", "written us*", "written over copied x*"),
            [[name, kind, one * 1e6, other * 1e6, other / one] for name, kind, one, other in by_layer()],
            SIMULATED,
            "MemFerry, figure 3(d)",
            "for so long the GPU computes nothing else; a copy takes the link as long, while it does",
        ),
    ]
