"""State dicts of convolutional networks for images: names as torchvision has them, shapes from the architectures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio_bench.workloads.shapes import Shape, batch_norm, convolution, linear

CLASSES = 1000  # ImageNet's
_COLOURS = 3


def alexnet() -> dict[str, Shape]:
    """AlexNet in one column (Krizhevsky 2014, section 5): five convolutions, three fully connected layers."""
    shapes: dict[str, Shape] = {}
    inputs = _COLOURS
    # The index of each in the sequence with ReLUs and pools, its channels, the side of its kernels.
    for place, outputs, side in ((0, 64, 11), (3, 192, 5), (6, 384, 3), (8, 256, 3), (10, 256, 3)):
        shapes |= convolution(f"features.{place}", outputs, inputs, side)
        inputs = outputs
    for place, outputs, wide in ((1, 4096, inputs * 6 * 6), (4, 4096, 4096), (6, CLASSES, 4096)):
        shapes |= linear(f"classifier.{place}", outputs, wide)
    return shapes


def vgg19() -> dict[str, Shape]:
    """VGG's configuration E (Simonyan and Zisserman 2015, table 1): 16 convolutions of 3 x 3, each with a ReLU."""
    shapes: dict[str, Shape] = {}
    inputs, place = _COLOURS, 0
    for outputs, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(convolutions):
            shapes |= convolution(f"features.{place}", outputs, inputs, 3)
            inputs, place = outputs, place + 2
        place += 1  # the pool
    for place, outputs, wide in ((0, 4096, inputs * 7 * 7), (3, 4096, 4096), (6, CLASSES, 4096)):
        shapes |= linear(f"classifier.{place}", outputs, wide)
    return shapes


def resnet(blocks: Sequence[int], widening: int = 1) -> dict[str, Shape]:
    """A ResNet of bottlenecks (He et al. 2016, table 1), ``blocks`` in each of its four stages.

    ``widening`` multiplies the channels inside bottlenecks, as in Wide ResNet-50-2.
    """
    shapes = convolution("conv1", 64, _COLOURS, 7, bias=False) | batch_norm("bn1", 64)
    inputs = 64
    for stage, count in enumerate(blocks):
        narrow, outputs = 64 * 2**stage * widening, 256 * 2**stage
        for block in range(count):
            at = f"layer{stage + 1}.{block}"
            layers = ((narrow, inputs, 1), (narrow, narrow, 3), (outputs, narrow, 1))
            for number, (channels, wide, side) in enumerate(layers, start=1):
                shapes |= convolution(f"{at}.conv{number}", channels, wide, side, bias=False)
                shapes |= batch_norm(f"{at}.bn{number}", channels)
            if block == 0:
                shapes |= convolution(f"{at}.downsample.0", outputs, inputs, 1, bias=False)
                shapes |= batch_norm(f"{at}.downsample.1", outputs)
            inputs = outputs
    return shapes | linear("fc", CLASSES, inputs)


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """A row of MobileNetV3's tables 1 and 2: kernel, expanded and output channels, whether it squeezes and excites."""

    side: int
    expanded: int
    outputs: int
    squeezes: bool


_LARGE = (
    Bottleneck(3, 16, 16, False),
    Bottleneck(3, 64, 24, False),
    Bottleneck(3, 72, 24, False),
    Bottleneck(5, 72, 40, True),
    Bottleneck(5, 120, 40, True),
    Bottleneck(5, 120, 40, True),
    Bottleneck(3, 240, 80, False),
    Bottleneck(3, 200, 80, False),
    Bottleneck(3, 184, 80, False),
    Bottleneck(3, 184, 80, False),
    Bottleneck(3, 480, 112, True),
    Bottleneck(3, 672, 112, True),
    Bottleneck(5, 672, 160, True),
    Bottleneck(5, 960, 160, True),
    Bottleneck(5, 960, 160, True),
)
_SMALL = (
    Bottleneck(3, 16, 16, True),
    Bottleneck(3, 72, 24, False),
    Bottleneck(3, 88, 24, False),
    Bottleneck(5, 96, 40, True),
    Bottleneck(5, 240, 40, True),
    Bottleneck(5, 240, 40, True),
    Bottleneck(5, 120, 48, True),
    Bottleneck(5, 144, 48, True),
    Bottleneck(5, 288, 96, True),
    Bottleneck(5, 576, 96, True),
    Bottleneck(5, 576, 96, True),
)


def mobilenet_v3(large: bool) -> dict[str, Shape]:
    """MobileNetV3 (Howard et al. 2019, tables 1 and 2), the large one or the small one."""
    rows, wide = (_LARGE, 1280) if large else (_SMALL, 1024)
    inputs = 16
    shapes = _normed("features.0", inputs, _COLOURS, 3)
    for number, row in enumerate(rows, start=1):
        shapes |= _bottleneck(f"features.{number}.block", inputs, row)
        inputs = row.outputs
    last = 6 * inputs
    shapes |= _normed(f"features.{len(rows) + 1}", last, inputs, 1)
    return shapes | linear("classifier.0", wide, last) | linear("classifier.3", CLASSES, wide)


def _bottleneck(name: str, inputs: int, row: Bottleneck) -> dict[str, Shape]:
    """Expand (if the channels differ), convolve each channel, squeeze and excite, project."""
    parts: list[dict[str, Shape]] = []
    if row.expanded != inputs:
        parts.append(_normed(f"{name}.{len(parts)}", row.expanded, inputs, 1))
    parts.append(_normed(f"{name}.{len(parts)}", row.expanded, 1, row.side))
    if row.squeezes:
        squeezed, at = _multiple_of_eight(row.expanded // 4), f"{name}.{len(parts)}"
        parts.append(
            convolution(f"{at}.fc1", squeezed, row.expanded, 1) | convolution(f"{at}.fc2", row.expanded, squeezed, 1)
        )
    parts.append(_normed(f"{name}.{len(parts)}", row.outputs, row.expanded, 1))
    return {key: shape for part in parts for key, shape in part.items()}


def _normed(name: str, outputs: int, inputs: int, side: int) -> dict[str, Shape]:
    """A convolution without bias and its BatchNorm."""
    return convolution(f"{name}.0", outputs, inputs, side, bias=False) | batch_norm(f"{name}.1", outputs)


def _multiple_of_eight(channels: int) -> int:
    """The nearest multiple of 8, but at least 8 and at least nine tenths, as the MobileNets round channels."""
    nearest = max(8, (channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def toy() -> dict[str, Shape]:
    """The Fastensor paper's Toy model (section 5.1.2), which sees CIFAR-10's images of 32 x 32.

    The paper gives its layers (three times a convolution and a pool, then two linear layers) and its size (0.5600 MB,
    table 9), but no widths. These widths are those of Caffe's cifar10-quick, a common network of the same layers. With
    them the state dict has 145,578 parameters, 0.5553 MiB, and its ``.pt`` file has the paper's size.
    """
    shapes: dict[str, Shape] = {}
    inputs, side = _COLOURS, 32
    for number, outputs in enumerate((32, 32, 64)):
        shapes |= convolution(f"model.{2 * number}", outputs, inputs, 5)
        inputs, side = outputs, side // 2
    return shapes | linear("model.7", 64, inputs * side**2) | linear("model.8", 10, 64)
