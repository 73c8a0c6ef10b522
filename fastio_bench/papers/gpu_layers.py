"""FlashNeuron's figures 3 and 9: single layers on a V100 at larger batches, from published times. Pure.

Figure 3 has what is gained if the batch grows until throughput no longer does, figure 9 at the best batch of table 3.
Batch normalisation and batched products are left out: no published times by batch were found. Nothing was measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastio_bench.papers.gpu_speed import between

SOURCE = (
    "Baidu DeepBench at da81ba7, results/train/DeepBench_NV_V100.xlsx, FP32: V100, CUDA 10.1, cuDNN 7.6; forward and "
    "backward"
)


@dataclass(frozen=True)
class Layer:
    """A layer of a network: (batch, milliseconds of a step), ascending, and the paper's batches of the network.

    ``rows``: how many of the source's batch an example is. ``plain_batch``, ``best_batch``: table 3's.
    """

    name: str
    network: str
    times: tuple[tuple[int, float], ...]
    plain_batch: int
    best_batch: int
    rows: int = 1

    def gain(self, batch: int) -> float:
        """The throughput at the batch over that at plain training's batch."""
        return batch / self.plain_batch * self._ms(self.plain_batch) / self._ms(batch)

    @property
    def most_gain(self) -> float:
        """The same as the batch grows without end."""
        return self.gain(1_000_000)

    def _ms(self, batch: int) -> float:
        return between(self.times, batch * self.rows)


LAYERS = (
    Layer("Conv, 3 x 3, 256 channels, 14 x 14", "ResNet-1922", ((8, 0.312), (16, 0.446)), 4, 7),
    Layer("MM, 1,024 x 3,072, 384 tokens", "BERT-XLarge", ((64, 0.051), (128, 0.081), (7435, 3.607)), 1, 3, 384),
    Layer("LSTM, 1,024 units, 25 steps", "HBMP", ((16, 4.025), (32, 4.422), (64, 5.407), (128, 8.373)), 20, 36),
)
"""Those of the source nearest to the networks': most of ResNet-1922's blocks have this convolution; HBMP's width is not
given. The product is forward's alone; its largest time is of the transposed one."""
