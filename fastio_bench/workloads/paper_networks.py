"""FlashNeuron's and Fastensor's networks as torch modules, scaled down, with a device's memory scaled alike.

Widths of FlashNeuron's are an eighth, and so is the number of pixels or tokens: activations and weights both have a
64th of their bytes. The depth is less, too, as is the memory; DenseNet's fewer layers add more each. Fastensor's have
the papers' depth and less width. What the papers don't give is assumed as in
:mod:`fastio_bench.papers.flashneuron_networks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import nn

_CLASSES = 10
_V100, _A100 = 16 << 30, 80 << 30  # bytes
_BYTES = 64  # of a layer of FlashNeuron's networks, over those here


@dataclass(frozen=True)
class PaperNetwork:
    """A network of a paper. ``theirs``: its largest batch of plain training, and with offload over that; 0: not given.

    ``build(depth)`` makes it, ``examples(batch)`` its inputs, ``optimizer`` takes its parameters and keeps its state
    beside them. ``memory``: the bytes of the device, the paper's GPU's scaled as the network is. ``deeper``: the
    paper's largest depth with offload over that without.
    """

    name: str
    theirs: tuple[int, float]
    depth: int
    build: Callable[[int], nn.Module]
    examples: Callable[[int], torch.Tensor]
    optimizer: Callable[[Any], torch.optim.Optimizer]
    memory: int
    deeper: float = 0.0


class Bottleneck(nn.Module):
    """ResNet's: 1 x 1, 3 x 3 and 1 x 1 convolutions, each with a norm, and a shortcut."""

    def __init__(self, inward: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 4 * narrow
        self.body = nn.Sequential(
            *(nn.Conv2d(inward, narrow, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)),
            *(nn.Conv2d(narrow, narrow, 3, stride, 1, bias=False), nn.BatchNorm2d(narrow), nn.ReLU(inplace=True)),
            *(nn.Conv2d(narrow, wide, 1, bias=False), nn.BatchNorm2d(wide)),
        )
        self.shortcut: nn.Module = nn.Identity()
        if inward != wide:
            self.shortcut = nn.Sequential(nn.Conv2d(inward, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))
        self.out = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, inward, side, side) to (batch, 4 narrow, side / stride, side / stride)."""
        return cast(torch.Tensor, self.out(self.body(x) + self.shortcut(x)))


class DenseLayer(nn.Module):
    """DenseNet's: norm, ReLU and convolution, twice; what it makes is put behind its input."""

    def __init__(self, channels: int, narrow: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.Conv2d(channels, narrow, 1, bias=False)),
            *(nn.BatchNorm2d(narrow), nn.ReLU(inplace=True), nn.Conv2d(narrow, growth, 3, padding=1, bias=False)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, channels, side, side) to (batch, channels + growth, side, side)."""
        return torch.cat([x, self.body(x)], 1)


class Encoder(nn.Module):
    """A block of BERT or, with ``first``, of ViT, whose norms come first. Its scores of attention are kept."""

    def __init__(self, width: int, heads: int, first: bool) -> None:
        super().__init__()
        self.heads, self.first = heads, first
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same shape."""
        if self.first:
            x = x + self._attention(self.norm_attention(x))
            return cast(torch.Tensor, x + self.mlp(self.norm_mlp(x)))
        x = self.norm_attention(x + self._attention(x))
        return cast(torch.Tensor, self.norm_mlp(x + self.mlp(x)))

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.query_key_value(x).view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = (query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5).softmax(-1)
        return cast(torch.Tensor, self.out((scores @ value).transpose(1, 2).reshape(batch, tokens, width)))


class First(nn.Module):
    """The first token's features."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to (batch, width)."""
        return x[:, 0]


def resnet(blocks: Sequence[int], depth: int) -> nn.Module:
    """``blocks``: of each stage in the paper; ``depth`` of them are made, in the same proportions."""
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inward = 8
    for stage, count in enumerate(stages(blocks, depth)):
        for number in range(count):
            layers.append(Bottleneck(inward, 8 << stage, 2 if stage and not number else 1))
            inward = 32 << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, _CLASSES))


def densenet(counts: Sequence[int], depth: int) -> nn.Module:
    """``counts``: layers of each block in the paper; the fewer are made, the more each adds."""
    growth, channels = 4 * sum(counts) // depth, 8
    layers: list[nn.Module] = [nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for stage, count in enumerate(stages(counts, depth)):
        if stage:
            layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
        for _ in range(count):
            layers.append(DenseLayer(channels, 16, growth))
            channels += growth
    layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, _CLASSES))


def bert(width: int, heads: int, vocabulary: int, depth: int) -> nn.Module:
    """BERT with a class for each text."""
    blocks = [Encoder(width, heads, first=False) for _ in range(depth)]
    return nn.Sequential(nn.Embedding(vocabulary, width), nn.LayerNorm(width), *blocks, First(), nn.Linear(width, 2))


class Patches(nn.Module):
    """Images to features of patches."""

    def __init__(self, width: int, patch: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(3, width, patch, patch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, 3, side, side) to (batch, patches, width)."""
        return cast(torch.Tensor, self.inner(x).flatten(2).transpose(1, 2).contiguous())


def vit(width: int, heads: int, depth: int) -> nn.Module:
    """ViT."""
    blocks = [Encoder(width, heads, first=True) for _ in range(depth)]
    return nn.Sequential(Patches(width, 14), *blocks, nn.LayerNorm(width), First(), nn.Linear(width, _CLASSES))


def toy(depth: int) -> nn.Module:
    """Fastensor's Toy (section 5.1.2); from the fourth on, further convolutions come before the first pool."""
    layers: list[nn.Module] = []
    inward = 3
    for number, outward in enumerate([8] * (depth - 1) + [16]):
        layers.append(nn.Conv2d(inward, outward, 5, padding=2))
        if number >= depth - 3:
            layers.append(nn.MaxPool2d(2))
        inward = outward
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16 * 4, 16), nn.Linear(16, _CLASSES))


def stages(counts: Sequence[int], depth: int) -> list[int]:
    """Return how many layers of each stage there are if ``depth`` are made."""
    return [max(1, round(count * depth / sum(counts))) for count in counts]


def _images(side: int, batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0))


def _text(length: int, vocabulary: int, batch: int) -> torch.Tensor:
    return torch.randint(vocabulary, (batch, length), generator=torch.Generator().manual_seed(0))


_RESNET, _DENSENET = (38, 102, 461, 39), (30, 61, 244, 163)
_MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9, foreach=False)
_SGD = partial(torch.optim.SGD, lr=0.1, foreach=False)
_ADAM = partial(torch.optim.AdamW, lr=2e-5, foreach=False)

FLASHNEURON = (
    PaperNetwork(
        *("ResNet-1922", (4, 14.0), 192, partial(resnet, _RESNET), partial(_images, 80), _MOMENTUM),
        _V100 // _BYTES * 192 // 640,
    ),
    PaperNetwork(
        *("DenseNet-1001", (4, 13.0), 150, partial(densenet, _DENSENET), partial(_images, 80), _MOMENTUM),
        _V100 // _BYTES * 150 // 498,
    ),
    PaperNetwork(
        *("BERT-XLarge", (1, 14.0), 24, partial(bert, 128, 16, 1000), partial(_text, 48, 1000), _ADAM),
        _V100 // _BYTES * 24 // 48,
    ),
)
BERT = PaperNetwork(
    "BERT", (2048, 20.0), 12, partial(bert, 32, 4, 1000), partial(_text, 32, 1000), _ADAM, _A100 // 2048
)
VIT = PaperNetwork("ViT-H/14", (64, 15.0), 32, partial(vit, 64, 16), partial(_images, 56), _SGD, _A100 // 1280, 31.25)
TOY = PaperNetwork("Toy", (0, 20.0), 3, toy, partial(_images, 16), _SGD, 8 << 20, 31.25)
DEEP_TOY = replace(TOY, name="Toy, 64 convolutions", depth=64)
