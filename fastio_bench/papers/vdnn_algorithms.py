"""The algorithms of vDNN's convolutions (sections II-B and III-C): how fast they are, and their workspaces. Pure.

The paper has no table of them. Its fastest algorithms work by Fourier transforms; their workspaces follow from that: of
each tile of the input and of the output, and of each filter, half of the spectrum. With them VGG-16 takes 16.9 GB at
batch 128 and 33.2 GB at 256, where the paper has 15 and 28 GB.
"""

from __future__ import annotations

import math

from fastio_bench.papers.vdnn_iteration import Algorithm

_TILE = 32  # the largest side of a transform: larger maps have several tiles
_COMPLEX, _OFFSET = 8, 4  # bytes of two float32, and of an int32

IMPLICIT_GEMM = 1 / (1 - 0.55)
"""How many times as long the algorithm without a workspace takes: with it, vDNN-conv loses 55 % of the throughput
(section V-C), nearly all of it to the algorithm. So throughputs with (m) are fitted to the paper's."""

IMPLICIT_PRECOMP_GEMM = math.sqrt(IMPLICIT_GEMM)
"""That of cuDNN's algorithm between both, with a table of offsets. Assumed, as the paper does not say: half way.
Without it, vDNN-dyn loses 22 % of VGG-16's throughput at batch 256, with it 12 %."""


def algorithms(
    seconds: float, batch: int, inward: int, outward: int, side: int, taps: int, stride: int
) -> tuple[Algorithm, ...]:
    """Return a convolution's algorithms, of which the fastest takes ``seconds``. ``side`` is that of the output.

    Transforms are for strides of 1 and filters larger than 1 x 1. For others, the one with a table is the fastest.
    """
    table = _OFFSET * inward * taps**2
    smallest = Algorithm(IMPLICIT_GEMM * seconds, 0)
    if stride != 1 or taps == 1:
        return Algorithm(seconds, table), smallest
    spectra = _transforms_nbytes(batch, inward, outward, side, taps)
    return Algorithm(seconds, spectra), Algorithm(IMPLICIT_PRECOMP_GEMM * seconds, table), smallest


def _transforms_nbytes(batch: int, inward: int, outward: int, side: int, taps: int) -> int:
    tile = min(_TILE, 1 << (side + taps - 2).bit_length())
    tiles = math.ceil(side / (tile - taps + 1)) ** 2
    return _COMPLEX * tile * (tile // 2 + 1) * (batch * (inward + outward) * tiles + inward * outward)
