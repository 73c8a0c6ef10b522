"""FlashNeuron's throughput at larger batches, with how busy a V100 is at each from published measurements. Pure.

A V100 trained ResNet-50 and BERT-Large, from which these networks have their blocks, at several batches, by their
sources. A deeper network is taken to need as many times their step as it has multiplications: its blocks are alike, so
what a step takes at any batch (launches, kernels too small for the GPU) grows with the depth as well. Forward passes of
the first source's ResNet-152, three times as deep, say the same: +41 % from a batch of 4 to one of 7, steps +43 %.
DenseNet-1001, for which no source was found, is taken to be as ResNet-50, whose layers are wider. Nothing was measured
here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count, pairwise

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio_bench.papers.capacity import iterate
from fastio_bench.papers.flashneuron_networks import Network, bert_xlarge, densenet_1001, encoder, resnet_1922
from fastio_bench.papers.offload_simulated import V100_SSD, Machine
from fastio_bench.papers.vgg_shapes import ITEM

_BEYOND = 16  # the search ends at so many times plain training's batch


@dataclass(frozen=True)
class Codec:
    """How many times smaller a codec makes float32: what ReLUs made, and all else."""

    rectified: float
    others: float


_ZEROS = (0.43 + 0.75) / 2  # of what ReLUs make, "ranging from 43% up to 75%" while training: section 3.3
NO_CODEC, FP16 = Codec(1.0, 1.0), Codec(2.0, 2.0)
CSR = Codec(ITEM / (ITEM * (1 - _ZEROS) + 20 / 128), 1.0)  # a row of 128 has 16 bytes of bits and a pointer of 4


@dataclass(frozen=True)
class Published:
    """Examples a second that a V100 trained of a network, at least two batches, ascending, and by which source."""

    network: Network
    rates: tuple[tuple[int, float], ...]
    source: str

    def step_s(self, batch: int) -> float:
        """The seconds of a step: linear between two batches of the source, and beyond as between the nearest two."""
        return between([(own, own / rate) for own, rate in self.rates], batch)


def between(points: Sequence[tuple[int, float]], batch: int) -> float:
    """The seconds at a batch, from at least two (batch, seconds): linear, and beyond as between the nearest two."""
    lower, upper = next((two for two in pairwise(points) if batch <= two[1][0]), (points[-2], points[-1]))
    return lower[1] + (upper[1] - lower[1]) * (batch - lower[0]) / (upper[0] - lower[0])


_NVIDIA = (
    "NVIDIA DeepLearningExamples at 729963d, TensorFlow/LanguageModeling/BERT/README.md, fine-tuning for SQuAD 1.1, "
    "TensorFlow 20.06, one V100, the smaller batch with 16 GB, the larger one with 32 GB"
)
RESNET_50 = Published(
    replace(resnet_1922((3, 4, 6, 3)), name="ResNet-50"),
    ((1, 34.54), (2, 65.01), (4, 113.49), (8, 174.81), (16, 251.22), (32, 298.51), (64, 343.19), (128, 363.69)),
    "Apache MXNet at 054aeee, docs/faq/perf.md, training results, MXNet 1.2.0.rc1, V100 (EC2 p3.2xlarge)",
)
BERT_LARGE = Published(encoder("BERT-Large", 24, 1024, 16, 384, 24), ((2, 7.36), (10, 10.42)), f"{_NVIDIA}, FP32")
BERT_LARGE_HALF = replace(BERT_LARGE, rates=((4, 29.74), (24, 51.02)), source=f"{_NVIDIA}, mixed precision")


@dataclass(frozen=True)
class Best:
    """The batch with the best throughput, and that throughput over plain training's at its largest batch, in +%."""

    network: str
    plain_batch: int
    batch: int
    gain: float


@cache
def best(machine: Machine = V100_SSD, codec: Codec = FP16) -> tuple[Best, ...]:
    """Figure 8: each network on the machine, by FlashNeuron's scheduler, with the codec for what moves."""
    speeds = ((resnet_1922(), RESNET_50), (densenet_1001(), RESNET_50), (bert_xlarge(), BERT_LARGE))
    return tuple(_best(own, speed, machine, codec) for own, speed in speeds)


@cache
def best_in_half_precision(machine: Machine = V100_SSD) -> Best:
    """Figure 10: BERT-XLarge with weights and activations in half precision, which the codec makes no smaller."""
    own = bert_xlarge()
    half = replace(own, kept=tuple(each // 2 for each in own.kept), parameter_nbytes=own.parameter_nbytes // 2)
    return _best(half, BERT_LARGE_HALF, machine, NO_CODEC)


def _best(own: Network, speed: Published, machine: Machine, codec: Codec) -> Best:
    deeper = own.products / speed.network.products
    plain_batch, _ = own.batches(machine.memory)
    plain = plain_batch / (deeper * speed.step_s(plain_batch))
    found = (plain, plain_batch)
    for batch in count(plain_batch + 1):
        step_s = deeper * speed.step_s(batch)
        workload = own.timed(batch, step_s / 3, machine.channel_bandwidth, codec.others, codec.rectified)
        try:
            found = max(found, (batch / (step_s * iterate(workload, machine.memory).slowdown), batch))
        except InfeasibleBudget:
            break
        if batch >= _BEYOND * plain_batch:
            break
    return Best(own.name, plain_batch, found[1], 100 * (found[0] / plain - 1))
