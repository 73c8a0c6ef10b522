"""Views of a storage, and the ranges of bytes that they touch. Sizes are bytes."""

from __future__ import annotations

from typing import NamedTuple

import torch

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
        return cls(
            tensor.dtype,
            tensor.shape,
            tensor.stride(),
            int(tensor.storage_offset()),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def touched(self) -> Span:
        """Return the span from the first to the last element; a stride of 0 adds nothing."""
        itemsize = self.dtype.itemsize
        last = 0
        for length, step in zip(self.shape, self.stride, strict=True):
            if length == 0:
                return Span(self.offset * itemsize, 0)
            last += (length - 1) * step
        return Span(self.offset * itemsize, (last + 1) * itemsize)

    def on(self, storage: torch.UntypedStorage, moved: int, akin: torch.Tensor) -> torch.Tensor:
        """Return the tensor on a storage in which its bytes lie ``moved`` bytes further than in the original storage.

        It gets the version counter of the tensor ``akin``.
        """
        found = torch.empty(0, dtype=self.dtype, device=storage.device)
        found.set_(storage, self.offset + moved // self.dtype.itemsize, self.shape, self.stride)
        tensor = akin.detach()
        tensor.data = found
        if self.conj:
            tensor = tensor.conj()
        return torch._neg_view(tensor) if self.neg else tensor


def span_to_save(touched: Span, storage_nbytes: int, on_host: bool) -> Span:
    """Return the whole storage, or only what a view touches if the storage is more than twice as large."""
    if storage_nbytes <= 2 * touched.nbytes:
        return Span(0, storage_nbytes)
    line = _HOST_LINE if on_host else _DEVICE_LINE
    start = touched.start // line * line
    end = min(storage_nbytes, -(-(touched.start + touched.nbytes) // line) * line)
    return Span(start, end - start)
