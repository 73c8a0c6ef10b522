"""Simulates gradient offload in two ways: copied beside backward, as Hybrid does, and written by kernels.

The latter is the MemFerry paper's (section IV-D): the GPU's kernels write gradients to host memory, over PCIe. Nothing
is measured here, but the H100's link was.
"""

from __future__ import annotations

from functools import cache

from fastio.hybrid.planning.costs import DHA
from fastio.hybrid.planning.plan import plan
from fastio.hybrid.simulation.machines import A100, V100, Machine, costs
from fastio_bench.papers.memferry_networks import A100_NETWORKS, ASSUMED, V100_NETWORKS, Network
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
    backward_s = 0.0
    for layer, mode in zip(layers, chosen.modes, strict=True):
        half = (layer.backward_dha_s if mode == DHA else layer.backward_s) / 2
        backward_s += half + max(half, layer.nbytes / write_bandwidth)
    return chosen.forward_s + backward_s + sum(update_seconds(machine, works))


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
        )
    ]
