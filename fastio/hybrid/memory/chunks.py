"""Cuts parameters into chunks, the unit of an update. Pure, except for the tensor views it makes.

One parameter that is larger than a chunk is cut, too: the embedding's gradient, made last, is often the largest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from fastio.hybrid.memory.flat_buffer import ALIGNMENT, lay_out
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.layers import Slot


@dataclass(eq=False)
class Part:
    """A parameter, or its elements ``start`` to ``stop`` in memory order.

    ``master`` is the tensor to update. ``offset``: where its bytes begin in its chunk.
    """

    gradient: Gradient
    master: torch.Tensor
    start: int
    stop: int
    offset: int = 0

    @property
    def slot(self) -> Slot:
        """The parameter's slot."""
        return self.gradient.slot

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole parameter."""
        return self.stop - self.start == self.slot.host.numel()

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return (self.stop - self.start) * self.master.element_size()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the same elements of a tensor with the parameter's shape and strides."""
        return tensor if self.master.shape == tensor.shape else in_memory_order(tensor)[self.start : self.stop]


@dataclass(eq=False)
class Chunk:
    """What is updated at a time. ``nbytes``: of its parts, each aligned to a cache line."""

    number: int
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a one-dimensional view of a dense tensor, in memory order."""
    return tensor.as_strided((tensor.numel(),), (1,))


def cut_parameters(gradients: Sequence[Gradient], most: int) -> list[Chunk]:
    """Return chunks of at most ``most`` bytes (a multiple of 4096); larger parameters are cut at cache lines."""

    def parts() -> Iterable[Part]:
        for one in gradients:
            step = most // one.host.element_size()
            for start in range(0, one.host.numel(), step):
                yield _part(one, start, min(start + step, one.host.numel()))

    return _packed(parts(), most)


def whole(gradient: Gradient) -> Part:
    """Return a parameter as one part."""
    return _part(gradient, 0, gradient.host.numel())


def _part(gradient: Gradient, start: int, stop: int) -> Part:
    host = gradient.slot.host
    entire = stop - start == host.numel()
    return Part(gradient, host.detach() if entire else in_memory_order(host.detach())[start:stop], start, stop)


def _packed(parts: Iterable[Part], most: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    room = 0
    for part in parts:
        taken = -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        if taken > room:
            chunks.append(Chunk(len(chunks)))
            room = most
        chunks[-1].parts.append(part)
        room -= taken
    for chunk in chunks:
        offsets, chunk.nbytes = lay_out(part.nbytes for part in chunk.parts)
        for part, offset in zip(chunk.parts, offsets, strict=True):
            part.offset = offset
    return chunks
