"""Bytes of VGG-style networks from their layer shapes, for vDNN's published numbers (sections IV and V). Pure.

Float32, 3 x 224 x 224 images, 3 x 3 convolutions of stride 1 and padding 1 in five groups, each followed by a 2 x 2
pooling of stride 2, then three fully connected layers. In-place ReLU adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from fastio.offload.planning.vdnn import CLASSIFIER, CONV, POOL
from fastio_bench.papers.vdnn_iteration import Layer

ITEM = 4  # bytes of a float32
SIDE = 224
GROUPS = ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4))  # channels, convolutions: vDNN's VGG-16
CLASSIFIER_WIDTHS = (4096, 4096, 1000)


def vgg(batch: int, convolutions: int = 16) -> tuple[Layer, ...]:
    """Return the layers, "input" first; extra convolutions (116, 216, ...) are divided equally among the groups."""
    more, rest = divmod(convolutions - 16, len(GROUPS))
    if more < 0 or rest:
        raise ValueError(f"{convolutions} convolutions are not 16 and as many more in each of {len(GROUPS)} groups")
    layers = [Layer("input", 3 * SIDE**2 * ITEM * batch)]
    side = SIDE
    for channels, count in GROUPS:
        nbytes = channels * side**2 * ITEM * batch
        layers += [Layer(CONV, nbytes, (len(layers) - 1 + k,)) for k in range(count + more)]
        side //= 2
        layers.append(Layer(POOL, nbytes // 4, (len(layers) - 1,)))
    for width in CLASSIFIER_WIDTHS:
        layers.append(Layer(CLASSIFIER, width * ITEM * batch, (len(layers) - 1,)))
    return tuple(layers)


def parameter_nbytes(convolutions: int = 16) -> int:
    """Return the bytes of weights and biases."""
    return ITEM * sum((inward * area + 1) * outward for inward, area, outward in _weights(convolutions))


def _weights(convolutions: int) -> Iterator[tuple[int, int, int]]:
    """Yield, per layer with weights: channels in, area of the filter, channels out."""
    channels, side = 3, SIDE
    for outward, count in GROUPS:
        for _ in range(count + (convolutions - 16) // len(GROUPS)):
            yield channels, 9, outward
            channels = outward
        side //= 2
    inward = channels * side**2
    for width in CLASSIFIER_WIDTHS:
        yield inward, 1, width
        inward = width
