"""Simulated layer costs on a GPU behind PCIe, from bytes and operations: a roofline model. Pure.

Seconds and bytes. The time of reading in place follows the MemFerry paper, figure 3: layers that touch their parameters
once (embeddings, norms) gain by it; matrix products read them once per tile of rows, over PCIe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from fastio.hybrid.planning.costs import LayerCosts

TILE_ROWS = 128  # rows per tile of a matrix product; each tile reads all parameters


@dataclass(frozen=True)
class Machine:
    """A GPU, its link and its host: operations per second, bytes per second.

    ``slower_backward`` is what backward loses with parameters in host memory, 0.075 for 7.5 %. ``update_bandwidth`` is
    that of host memory during the optimizer's update. ``sources`` says where each figure comes from.
    """

    name: str
    operations_per_s: float
    memory_bandwidth: float
    link_bandwidth: float
    update_bandwidth: float
    slower_backward: float = 0.075
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Work:
    """A layer's forward pass: bytes of its parameters, bytes of those it touches, operations, bytes of activations.

    ``rows``: rows of its matrix product, 0 if it has none.
    """

    nbytes: int
    touched: int
    operations: float = 0.0
    moved: int = 0
    rows: int = 0


A100 = Machine(
    "A100, PCIe 3.0",
    78e12,
    1.555e12,
    12.0e9,
    100e9,
    sources=(
        "half of 156 TFLOPS in TF32 and 1,555 GB/s: NVIDIA's data sheet of the A100; the half is an assumption",
        "12.0 GB/s of PCIe 3.0 x16 (the paper names 3.0 and, in section III-B, a switch of 100 Gbps)",
        "100 GB/s of host memory for the update: an assumption for the paper's 128 cores",
        "backward 5 to 10 % slower with parameters in place: the paper, section III-B",
    ),
)
V100 = Machine(
    "V100, PCIe 3.0",
    9.4e12,
    900e9,
    12.0e9,
    40e9,
    sources=(
        "60 % of 15.7 TFLOPS in single precision and 900 GB/s: NVIDIA's data sheet of the V100; the 60 % is assumed",
        "12.0 GB/s of PCIe 3.0 x16",
        "40 GB/s of host memory for the update: an assumption for the paper's 12 cores",
        "backward 5 to 10 % slower with parameters in place: the paper, section III-B",
    ),
)


def costs(work: Work, machine: Machine) -> LayerCosts:
    """Return the layer's costs."""
    tiles = math.ceil(work.rows / TILE_ROWS) if work.rows else 1
    forward_s = max(work.operations / machine.operations_per_s, (work.moved + work.touched) / machine.memory_bandwidth)
    in_place_s = max(forward_s, tiles * work.touched / machine.link_bandwidth)
    return LayerCosts(
        copy_s=work.nbytes / machine.link_bandwidth,
        forward_s=forward_s,
        forward_dha_s=in_place_s,
        backward_s=2 * forward_s,
        backward_dha_s=2 * forward_s * (1 + machine.slower_backward),
        nbytes=work.nbytes,
    )
