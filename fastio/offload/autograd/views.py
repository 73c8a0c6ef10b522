"""Views of a storage, and the ranges of bytes that they touch. Sizes are bytes."""

from __future__ import annotations

from functools import lru_cache
from operator import mul
from typing import Any, NamedTuple

import torch

from fastio.offload.autograd.version_counters import empty_on

# Kernels may round differently by an operand's offset within a line, so a reload keeps that offset: 64 bytes for MKL;
# for CUDA libraries the alignment of torch's allocator.
_HOST_LINE, _DEVICE_LINE = 64, 512
PAGE = 4096
LINE = _HOST_LINE


class Span(NamedTuple):
    """A byte range of a storage."""

    start: int
    nbytes: int

    def covers(self, other: Span) -> bool:
        """Return whether the other span lies within this one."""
        return self.start <= other.start and other.start + other.nbytes <= self.start + self.nbytes


class View(NamedTuple):
    """The view of a storage that a tensor is.

    ``offset`` and ``stride`` count elements, ``offset`` from the first byte of the storage.
    """

    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> View:
        """Return the view of this tensor."""
        offset: Any = tensor.storage_offset()
        return cls(tensor.dtype, tensor.shape, tensor.stride(), offset, tensor.is_conj(), tensor.is_neg())

    def touched(self) -> Span:
        """Return the span from the first to the last element; a stride of 0 adds nothing."""
        itemsize = self.dtype.itemsize
        if 0 in self.shape:
            return Span(self.offset * itemsize, 0)
        last = sum(map(mul, self.shape, self.stride)) - sum(self.stride)
        return Span(self.offset * itemsize, (last + 1) * itemsize)

    def on(self, storage: torch.UntypedStorage, moved: int) -> torch.Tensor:
        """Return the elements on a storage in which they lie ``moved`` bytes further than in the original storage.

        They are not conjugated or negated.
        """
        found = empty_on(storage.device, self.dtype).data
        return found.set_(storage, self.offset + moved // self.dtype.itemsize, self.shape, self.stride)

    def tensor(self, elements: torch.Tensor, akin: torch.Tensor) -> torch.Tensor:
        """Return the tensor with these elements, and with the version counter of the tensor ``akin``."""
        tensor = akin.detach()
        tensor.data = elements
        if self.conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.neg else tensor


@lru_cache(maxsize=4096)
def view_of(
    dtype: torch.dtype, shape: torch.Size, stride: tuple[int, ...], offset: int, conj: bool, neg: bool
) -> tuple[View, Span]:
    """Return the view with these properties, and the span that it touches. A training asks for the same ones always."""
    view = View(dtype, shape, stride, offset, conj, neg)
    return view, view.touched()


def span_to_save(touched: Span, storage_nbytes: int, on_host: bool) -> Span:
    """Return the whole storage, or only what a view touches if the storage is more than twice as large."""
    if storage_nbytes <= 2 * touched.nbytes:
        return Span(0, storage_nbytes)
    line = _HOST_LINE if on_host else _DEVICE_LINE
    start = touched.start // line * line
    end = min(storage_nbytes, -(-(touched.start + touched.nbytes) // line) * line)
    return Span(start, end - start)
