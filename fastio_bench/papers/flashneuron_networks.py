"""FlashNeuron's networks from their layers' shapes: how large a batch its V100 trains (figure 2, table 3). Pure.

The paper gives depths, not widths. Assumed: ResNet-1922 and DenseNet-1001 have the blocks of ResNet-152 and
DenseNet-201 (growth 32) in the same proportions, images of 224 x 224, SGD with momentum; BERT-XLarge is BERT-large with
48 blocks, sequences of 384, AdamW, a GELU of single operations. Float32. HBMP's sizes are not given: it is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property

from fastio.offload.planning.overlap import ActivationProfile
from fastio_bench.papers.capacity import Workload, largest_runnable
from fastio_bench.papers.offload_simulated import V100_SSD, plain
from fastio_bench.papers.vgg_shapes import ITEM
from fastio_bench.workloads.shapes import POSITIONS, SEGMENTS, VOCABULARY

_STEM = 64 * 112**2 * 3 + 3 * 224**2  # values: the image, and the first convolution, its norm and its ReLU
_STEM_RELU = 64 * 112**2
_STEM_PRODUCTS = 3 * 64 * 49 * 112**2
_PIXELS = (56**2, 28**2, 14**2, 7**2)  # of each stage
_GROWTH, _BOTTLENECK = 32, 128  # DenseNet


@dataclass(frozen=True)
class Network:
    """A network: the bytes that each block keeps for backward, for one example, and the bytes of its parameters.

    ``states``: how many times the parameters' bytes are resident, with gradients and the optimizer's state.
    ``products``: the multiplications, each with an addition, of one example's forward pass. ``rectified``: of the bytes
    that each block keeps, those that ReLUs made; empty if it has none.
    """

    name: str
    kept: tuple[int, ...]
    parameter_nbytes: int
    states: int
    products: int
    rectified: tuple[int, ...] = ()

    def workload(self, batch: int) -> Workload:
        """The values move through the GPU's memory twice, which is all that forward takes."""
        return self.timed(batch, 2 * sum(self.kept) * batch / V100_SSD.memory_bandwidth)

    def timed(
        self,
        batch: int,
        forward_s: float,
        bandwidth: float = V100_SSD.channel_bandwidth,
        ratio: float = 1.0,
        rectified_ratio: float = 1.0,
    ) -> Workload:
        """An iteration whose forward pass takes so long, each block by its bytes, and backward twice as long.

        A block's tensors move at so many bytes a second, after a codec made those of ReLUs ``rectified_ratio`` and the
        others ``ratio`` times smaller; if both are the same, together. Beside them, the largest block has its
        gradients.
        """
        apart = self.rectified if ratio != rectified_ratio else ()
        now, activations = 0.0, []
        for number, each in enumerate(self.kept):
            now += forward_s * each / sum(self.kept)
            zeros = apart[number] if apart else 0
            for nbytes, smaller in ((zeros * batch, rectified_ratio), ((each - zeros) * batch, ratio)):
                if nbytes:
                    activations.append(ActivationProfile(nbytes, nbytes / bandwidth, smaller, now, ""))
        fixed, working = self.states * self.parameter_nbytes, max(self.kept) * batch
        return Workload(tuple(activations), forward_s, 2 * forward_s, fixed, working)

    @property
    def plain_batch(self) -> int:
        """The largest batch that the V100 trains without offload."""
        return self._batches_on_the_v100[0]

    @property
    def largest_batch(self) -> int:
        """The largest batch that the V100 trains with offload."""
        return self._batches_on_the_v100[1]

    @cached_property
    def _batches_on_the_v100(self) -> tuple[int, int]:
        return self.batches(V100_SSD.memory)

    def batches(self, memory: int) -> tuple[int, int]:
        """The largest batch that trains in so many bytes without offload, and if every block's tensors may leave."""
        return largest_runnable(self.workload, memory, plain), largest_runnable(self.workload, memory, "optimal")

    @property
    def most_gain(self) -> float:
        """The throughput over plain training's in +%, if the largest batches hid all transfers, at most.

        An example takes the peak rate in single precision or the memory's, once forward, twice backward. An
        iteration moves the parameters through memory besides: forward and backward read them and write gradients; the
        optimizer reads all states and writes all but the gradients.
        """
        moved = 2 * sum(self.kept) / V100_SSD.memory_bandwidth
        example = 3 * max(2 * self.products / V100_SSD.operations_per_s, moved)
        parameters = (3 + 2 * self.states - 1) * self.parameter_nbytes / V100_SSD.memory_bandwidth
        return 100 * parameters / (self.plain_batch * example)

    def kept_share(self, times: int) -> float:
        """What is kept for backward, in % of all memory, at so many times the largest batch of plain training."""
        used = self.workload(times * self.plain_batch)
        kept = sum(activation.nbytes for activation in used.activations)
        return 100 * kept / (kept + used.fixed_nbytes + used.working_nbytes)


def resnet_1922(blocks: Sequence[int] = (38, 102, 461, 39)) -> Network:
    """640 bottlenecks: each keeps its input, four narrow tensors and the input of its last norm."""
    kept, weights, inward, products, before = [_STEM * ITEM], 3 * 64 * 49 + 128, 64, _STEM_PRODUCTS, _PIXELS[0]
    rectified = [_STEM_RELU * ITEM]
    for stage, count in enumerate(blocks):
        narrow = 64 << stage
        wide = 4 * narrow
        kept += [(2 * wide + 4 * narrow) * _PIXELS[stage] * ITEM] * count
        rectified += [(wide + 2 * narrow) * _PIXELS[stage] * ITEM] * count
        block = 9 * narrow**2 + narrow * wide + 4 * narrow + 2 * wide
        weights += (wide * narrow + block) * (count - 1) + inward * narrow + block + inward * wide + 2 * wide
        products += inward * narrow * before + (17 * count - 4) * narrow**2 * _PIXELS[stage]
        products += inward * wide * _PIXELS[stage]
        inward, before = wide, _PIXELS[stage]
    parameters = (weights + 2049 * 1000) * ITEM
    return Network("ResNet-1922", tuple(kept), parameters, 3, products + 2048 * 1000, tuple(rectified))


def densenet_1001(layers: Sequence[int] = (30, 61, 244, 163)) -> Network:
    """498 layers: each keeps all channels before it twice (norm and ReLU), and its bottleneck twice."""
    kept, weights, channels, products = [_STEM * ITEM], 3 * 64 * 49 + 128, 64, _STEM_PRODUCTS
    rectified = [_STEM_RELU * ITEM]
    for stage, count in enumerate(layers):
        for _ in range(count):
            kept.append((2 * channels + 2 * _BOTTLENECK) * _PIXELS[stage] * ITEM)
            rectified.append((channels + _BOTTLENECK) * _PIXELS[stage] * ITEM)
            weights += 2 * channels + channels * _BOTTLENECK + 2 * _BOTTLENECK + 9 * _BOTTLENECK * _GROWTH
            products += (channels + 9 * _GROWTH) * _BOTTLENECK * _PIXELS[stage]
            channels += _GROWTH
        if stage < len(layers) - 1:  # a transition halves the channels, then the pixels
            kept.append((2 * channels + channels // 2) * _PIXELS[stage] * ITEM)
            rectified.append(channels * _PIXELS[stage] * ITEM)
            weights += 2 * channels + channels * (channels // 2)
            products += channels * (channels // 2) * _PIXELS[stage]
            channels //= 2
    weights += 2 * channels + 1000 * (channels + 1)
    return Network("DenseNet-1001", tuple(kept), weights * ITEM, 3, products + 1000 * channels, tuple(rectified))


def bert_xlarge() -> Network:
    """BERT-large with 48 blocks. Its GELU of single operations keeps three tensors of four times the width."""
    return encoder("BERT-XLarge", 48, 1024, 16, 384, 24)


def encoder(
    name: str, blocks: int, hidden: int, heads: int, length: int, tensors: int, vocabulary: int = VOCABULARY
) -> Network:
    """A BERT. A block keeps so many tensors of its width, counting wider ones, and the scores of attention twice."""
    kept = (tensors * length * hidden + 2 * heads * length**2) * ITEM
    embedded = (vocabulary + POSITIONS + SEGMENTS + 2) * hidden  # with the norm
    weights = embedded + blocks * (12 * hidden**2 + 13 * hidden) + hidden**2 + hidden
    products = blocks * (12 * length * hidden**2 + 2 * length**2 * hidden)
    return Network(name, (length * hidden * ITEM, *[kept] * blocks), weights * ITEM, 4, products)


@cache
def every() -> list[Network]:
    """Those whose shapes are known or assumed here."""
    return [resnet_1922(), densenet_1001(), bert_xlarge()]
