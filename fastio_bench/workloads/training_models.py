"""The networks that ``fastio-bench offload`` trains. They need only torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import torch
from torch import nn
from torch.nn import functional

CLASSES = 10
_SIDE = 32  # pixels: the side of the images for mlp, cnn and vit
_PATCH = 4
_TOKENS, _VOCABULARY = 128, 256  # for the transformer's and the lstm's sequences
_HEAD = 64  # features of one attention head, at most
_STACK_SIDE = 28


@dataclass(frozen=True, slots=True)
class Architecture:
    """A named network: its default sizes, and the functions that make it and a batch of examples.

    ``build(depth, width)`` returns the network, ``examples(batch, generator)`` inputs and their classes.
    """

    name: str
    batch: int
    depth: int
    width: int
    build: Callable[[int, int], nn.Module]
    examples: Callable[[int, torch.Generator], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Size:
    """The network to train, and its sizes."""

    architecture: str
    batch: int
    depth: int
    width: int

    def __str__(self) -> str:
        return f"{self.architecture}, depth {self.depth}, width {self.width}, batch {self.batch}"


@dataclass(frozen=True)
class Training:
    """A network with one fixed batch."""

    model: nn.Module
    inputs: torch.Tensor
    targets: torch.Tensor

    def loss(self) -> torch.Tensor:
        """The forward pass: the mean cross-entropy, a scalar."""
        return functional.cross_entropy(self.model(self.inputs).flatten(0, -2), self.targets.flatten())


class Block(nn.Module):
    """A pre-norm transformer block. A ``causal`` one, a decoder's, attends to no later token."""

    def __init__(self, width: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = max(1, width // _HEAD), causal
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to the same shape."""
        batch, tokens, width = x.shape
        projected = self.query_key_value(self.before_attention(x))
        query, key, value = projected.view(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return cast(torch.Tensor, x + self.mlp(self.before_mlp(x)))


class Embedding(nn.Module):
    """Tokens or patches to features, with learned position embeddings."""

    def __init__(self, inner: nn.Module, tokens: int, width: int) -> None:
        super().__init__()
        self.inner, self.places = inner, nn.Parameter(torch.randn(tokens, width) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) indices or (batch, 3, side, side) images to (batch, tokens, width)."""
        features = self.inner(x)
        if features.dim() == 4:
            features = features.flatten(2).transpose(1, 2)
        return cast(torch.Tensor, features + self.places)


class Recurrent(nn.Module):
    """Stacked LSTM layers that return the state of every token."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(_VOCABULARY, width), nn.Linear(width, _VOCABULARY)
        self.lstm = nn.LSTM(width, width, depth, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens) indices to (batch, tokens, vocabulary)."""
        return cast(torch.Tensor, self.head(self.lstm(self.embedding(x))[0]))


class Mean(nn.Module):
    """The mean over the tokens."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(batch, tokens, width) to (batch, width)."""
        return x.mean(1)


def _mlp(depth: int, width: int) -> nn.Module:
    sizes = [3 * _SIDE**2, *[width] * depth]
    hidden = [layer for sides in pairwise(sizes) for layer in (nn.Linear(*sides), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, CLASSES))


def _cnn(depth: int, width: int) -> nn.Module:
    """Convolutions with in-place ReLU; pooling halves the sides after each third of them."""
    layers: list[nn.Module] = []
    for number in range(depth):
        layers += [nn.Conv2d(width if number else 3, width, 3, padding=1), nn.ReLU(inplace=True)]
        if (number + 1) % max(1, depth // 3) == 0 and number < 4 * max(1, depth // 3):
            layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def _conv_stack(depth: int, width: int) -> nn.Module:
    """3 x 3 convolutions of many channels: much computation for each saved byte."""
    body = [layer for _ in range(depth) for layer in (nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES)]
    return nn.Sequential(nn.Conv2d(3, width, 1), *body, *head)


def _transformer(depth: int, width: int) -> nn.Module:
    start = Embedding(nn.Embedding(_VOCABULARY, width), _TOKENS, width)
    blocks = [Block(width, causal=True) for _ in range(depth)]
    return nn.Sequential(start, *blocks, nn.LayerNorm(width), nn.Linear(width, _VOCABULARY))


def _vit(depth: int, width: int) -> nn.Module:
    start = Embedding(nn.Conv2d(3, width, _PATCH, _PATCH), (_SIDE // _PATCH) ** 2, width)
    blocks = [Block(width, causal=False) for _ in range(depth)]
    return nn.Sequential(start, *blocks, nn.LayerNorm(width), Mean(), nn.Linear(width, CLASSES))


def _images(batch: int, generator: torch.Generator, side: int = _SIDE) -> tuple[torch.Tensor, torch.Tensor]:
    images = torch.randn(batch, 3, side, side, generator=generator)
    return images, torch.randint(CLASSES, (batch,), generator=generator)


def _text(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    tokens = torch.randint(_VOCABULARY, (batch, _TOKENS + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def _large_images(batch: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    return _images(batch, generator, _STACK_SIDE)


_EVERY = (
    Architecture("mlp", 4096, 24, 1024, _mlp, _images),
    Architecture("cnn", 128, 12, 64, _cnn, _images),
    Architecture("transformer", 32, 24, 256, _transformer, _text),
    Architecture("lstm", 64, 4, 256, Recurrent, _text),
    Architecture("vit", 128, 12, 192, _vit, _images),
    Architecture("conv-stack", 16, 12, 256, _conv_stack, _large_images),
)
ARCHITECTURES = {architecture.name: architecture for architecture in _EVERY}


def make(name: str, batch: int, depth: int, width: int, seed: int = 0) -> Training:
    """The network and its batch, with the same values in every process."""
    torch.manual_seed(seed)
    architecture = ARCHITECTURES[name]
    model = architecture.build(depth, width)
    return Training(model, *architecture.examples(batch, torch.Generator().manual_seed(seed)))
