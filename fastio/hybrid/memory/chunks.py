"""Parameters cut into what is updated at a time. Pure but for the tensors that it makes views of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch

from fastio.hybrid.memory.flat_buffer import ALIGNMENT, laid_out
from fastio.hybrid.memory.gradient_copies import Gradient
from fastio.hybrid.memory.layers import Slot

BUCKET = 32 << 20  # bytes of parameters: an update that hides the copies of the gradients behind it


@dataclass(eq=False)
class Part:
    """A parameter, or elements ``start`` to ``stop`` of one in the order of its memory. ``master`` is what is updated.

    ``offset``: where its bytes begin among those of its piece.
    """

    gradient: Gradient
    master: torch.Tensor
    start: int
    stop: int
    offset: int = 0

    @property
    def slot(self) -> Slot:
        """The parameter's."""
        return self.gradient.slot

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return (self.stop - self.start) * self.master.element_size()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same elements of a tensor with the parameter's shape and strides."""
        return tensor if self.master.shape == tensor.shape else in_memory_order(tensor)[self.start : self.stop]


@dataclass(eq=False)
class Piece:
    """What is updated at a time. ``nbytes``: of its parts, each beginning on a cache line."""

    number: int
    parts: list[Part] = field(default_factory=list)
    nbytes: int = 0


def in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's elements as they lie: a view of one dimension."""
    return tensor.as_strided((tensor.numel(),), (1,))


def whole(gradients: Iterable[Gradient], bucket: int = BUCKET) -> list[Piece]:
    """Buckets of whole parameters, the last of the model first: backward is through with those first."""
    return _packed((_part(one, 0, one.host.numel()) for one in gradients), bucket)


def cut(gradients: Sequence[Gradient], most: int) -> list[Piece]:
    """Pieces of at most ``most`` bytes (a multiple of 4096); larger parameters are cut, on cache lines."""

    def parts() -> Iterable[Part]:
        for one in gradients:
            step = most // one.host.element_size()
            for start in range(0, one.host.numel(), step):
                yield _part(one, start, min(start + step, one.host.numel()))

    return _packed(parts(), most)


def _part(gradient: Gradient, start: int, stop: int) -> Part:
    host = gradient.slot.host
    entire = stop - start == host.numel()
    return Part(gradient, host.detach() if entire else in_memory_order(host.detach())[start:stop], start, stop)


def _packed(parts: Iterable[Part], most: int) -> list[Piece]:
    pieces: list[Piece] = []
    room = 0
    for part in parts:
        taken = -(-part.nbytes // ALIGNMENT) * ALIGNMENT
        if taken > room:
            pieces.append(Piece(len(pieces)))
            room = most
        pieces[-1].parts.append(part)
        room -= taken
    for piece in pieces:
        offsets, piece.nbytes = laid_out(part.nbytes for part in piece.parts)
        for part, offset in zip(piece.parts, offsets, strict=True):
            part.offset = offset
    return pieces
