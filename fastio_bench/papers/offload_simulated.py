"""Simulates fastio's planners on the papers' machines. Nothing is measured.

Layers' bytes and operations follow from VGG's shapes. A layer's time is that of the GPU's peak rate or of its memory
(a roofline), so transfers have less time to hide than on a real GPU. Reads are assumed to be as slow as writes. Every
figure of a machine has its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.schedule import Policy
from fastio.offload.planning.vdnn import CONV, POOL
from fastio_bench.papers.capacity import Workload, calibrated_batch, largest_as_fast, largest_runnable
from fastio_bench.papers.vgg_shapes import ITEM, SIDE, parameter_nbytes, vgg

GIB = 1 << 30
_TAPS = 9  # weights of a 3 x 3 convolution, for a pair of channels
_SLACK = 0.02  # an iteration at most this much longer counts as equally fast
_MOST_BATCH = 1 << 14


@dataclass(frozen=True)
class Machine:
    """A GPU and where its activations go: bytes, operations a second, bytes a second."""

    name: str
    memory: int
    operations_per_s: float
    memory_bandwidth: float
    channel: str
    channel_bandwidth: float
    sources: tuple[str, ...]


TITAN_X = Machine(
    "vDNN's Titan X",
    12 * GIB,
    7e12,
    336e9,
    "host memory by PCIe",
    12.8e9,
    (
        "12 GB, 7 TFLOPS in single precision, 336 GB/s: vDNN, section IV-B",
        "12.8 GB/s on average of PCIe's 16: vDNN, section II-C",
    ),
)
_V100_SOURCES = (
    "V100 with 16 GB: FlashNeuron, table 1",
    "14 TFLOPS in single precision, 900 GB/s: NVIDIA's data sheet of the V100 PCIe; the paper has no such figures",
)
V100_SSD = Machine(
    "FlashNeuron's V100, SSDs",
    16 * GIB,
    14e12,
    900e9,
    "two PM1725b SSDs",
    6.0e9,
    (*_V100_SOURCES, "sustained writes of 3.0 GB/s x 2: FlashNeuron, section 4.2 (table 1 says 3.3 each)"),
)
V100_HOST = Machine(
    "FlashNeuron's V100, host memory",
    16 * GIB,
    14e12,
    900e9,
    "host memory by PCIe",
    13.0e9,
    (*_V100_SOURCES, "13.0 GB/s of PCIe writes: FlashNeuron, section 4.2"),
)
MACHINES = (TITAN_X, V100_SSD, V100_HOST)


def plain(activations: Sequence[ActivationProfile], need_bytes: int, forward_s: float) -> Iterable[int]:
    """The policy by which everything stays."""
    return ()


WAYS: dict[str, tuple[str | Policy, float]] = {
    "plain": (plain, 1.0),
    "fastensor, synchronous": ("fastensor", 1.0),
    "flashneuron": ("flashneuron", 1.0),
    "flashneuron, fp16": ("flashneuron", 2.0),
    "optimal": ("optimal", 1.0),
}
"""By name: the policy, and how many times smaller its codec makes every activation. vDNN's have their own model."""


@dataclass(frozen=True)
class Capacity:
    """Simulated: the largest batch of VGG-16 that trains, and the largest that is (nearly) as fast as plain."""

    machine: str
    way: str
    runs: int
    as_fast: int


@dataclass(frozen=True)
class Calibrated:
    """A row of FlashNeuron's table 3, with the share of activations that hides, fitted to it."""

    network: str
    plain_batch: int
    paper_batch: int
    hidden: float
    batch: int


def workload(machine: Machine, batch: int, convolutions: int = 16, ratio: float = 1.0) -> Workload:
    """VGG's iteration on the machine: every layer's input is an activation, ready when that layer is done."""
    layers = vgg(batch, convolutions)
    activations: list[ActivationProfile] = []
    side, now = SIDE, 0.0
    for layer in layers[1:]:
        taken = sum(layers[index].nbytes for index in layer.inputs)
        inward, outward = taken // ITEM // batch, layer.nbytes // ITEM // batch  # values of one image
        if layer.kind == CONV:
            operations = 2 * _TAPS * (inward // side**2) * outward
        elif layer.kind == POOL:
            side //= 2
            operations = inward
        else:
            operations = 2 * inward * outward
        moved = (taken + layer.nbytes) / machine.memory_bandwidth
        now += max(operations * batch / machine.operations_per_s, moved)
        activations.append(ActivationProfile(taken, taken / machine.channel_bandwidth, ratio, now, layer.kind))
    # Backward computes the gradients of inputs and of weights, each as much work as forward.
    gradients = 2 * max(layer.nbytes for layer in layers)
    return Workload(tuple(activations), now, 2 * now, 2 * parameter_nbytes(convolutions), gradients)


def capacities(machine: Machine) -> list[Capacity]:
    """The capacities of VGG-16 on the machine, by every way."""
    found = []
    for name, (policy, ratio) in WAYS.items():

        def at_batch(batch: int, ratio: float = ratio) -> Workload:
            return workload(machine, batch, ratio=ratio)

        runs = largest_runnable(at_batch, machine.memory, policy, _MOST_BATCH)
        as_fast = largest_as_fast(at_batch, machine.memory, policy, _SLACK, _MOST_BATCH)
        found.append(Capacity(machine.name, name, runs, as_fast))
    return found


_TABLE_3 = (
    ("ResNet-1922", 4, 7, 0.43),
    ("DenseNet-1001", 4, 8, 0.50),
    ("BERT-XLarge", 1, 3, 0.67),
    ("HBMP", 20, 36, 0.45),
)


def calibrated() -> list[Calibrated]:
    """FlashNeuron's table 3, "maximum throughput". The shares come from the table, so this predicts nothing."""
    return [
        Calibrated(network, plain, paper, hidden, calibrated_batch(plain, hidden))
        for network, plain, paper, hidden in _TABLE_3
    ]
