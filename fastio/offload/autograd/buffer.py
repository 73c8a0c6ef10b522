"""Memory that a saved tensor's bytes are read back to."""

from __future__ import annotations

import torch

from fastio.offload.autograd.views import PAGE, Span, View
from fastio.offload.stores import fresh_memory

_CPU = torch.device("cpu")
IN_HUGE_PAGES = 1 << 20  # bytes: see fresh_memory


class Buffer:
    """Memory that holds a saved tensor's bytes, which begin at byte ``start`` of ``storage``.

    ``tensor``: the saved tensor's view of the storage, if it was allocated as one.
    """

    __slots__ = ("start", "storage", "tensor")

    def __init__(self, storage: torch.UntypedStorage, start: int, tensor: torch.Tensor | None = None) -> None:
        self.storage = storage
        self.start = start
        self.tensor = tensor

    @classmethod
    def for_payload(cls, nbytes: int, device: torch.device = _CPU, lead: int = 0) -> Buffer:
        """Allocate memory for encoded bytes; see :meth:`like_source`."""
        return cls.like_source(Span(0, nbytes), nbytes, device, lead)

    @classmethod
    def of_view(cls, view: View, device: torch.device) -> Buffer:
        """Allocate memory for a tensor that is all of its storage. See :meth:`like_source` for a GPU's memory."""
        tensor = torch.empty_strided(view.shape, view.stride, dtype=view.dtype, device=device)
        return cls(tensor.untyped_storage(), 0, tensor)

    @classmethod
    def like_source(
        cls, span: Span, source_nbytes: int, device: torch.device = _CPU, lead: int = 0, paged: bool = True
    ) -> Buffer:
        """Allocate memory for a span of a storage of ``source_nbytes``.

        On the CPU the new storage has the size of the source and the span at the same place, so offsets stay valid.
        Bytes outside the span are zero and take no memory. Unless ``paged`` is false, the span starts ``lead`` bytes
        into a page, so that direct I/O of whole pages needs no bounce buffer. On a GPU the storage is the span alone,
        aligned by torch and allocated on the current stream: kernels queued there before may still use the memory.
        """
        if device.type != "cpu":
            return cls(torch.empty(span.nbytes, dtype=torch.uint8, device=device).untyped_storage(), 0)
        if span.nbytes == source_nbytes:
            if not paged and source_nbytes < IN_HUGE_PAGES:
                return cls(torch.empty(source_nbytes, dtype=torch.uint8, device=_CPU).untyped_storage(), 0)
            before = max(0, lead - span.start)
            owner = fresh_memory.empty((before + source_nbytes + 2 * PAGE,), torch.uint8, device)
        else:
            before = max(0, lead - span.start)
            owner = fresh_memory.untouched(
                before + source_nbytes + 2 * PAGE, before + span.start - lead, lead + span.nbytes
            )
        begin = before + (lead - span.start - before - owner.data_ptr()) % PAGE
        # From the array, not the tensor: this makes a separate storage that keeps the owner's memory alive.
        storage = torch.frombuffer(
            owner.numpy(), dtype=torch.uint8, offset=begin, count=source_nbytes
        ).untyped_storage()
        return cls(storage, span.start)

    @property
    def address(self) -> int:
        """The address of the first byte."""
        return self.storage.data_ptr() + self.start

    def bytes(self, nbytes: int) -> torch.Tensor:
        """Return the bytes as a flat uint8 tensor."""
        return flat_bytes(self.storage, self.start, nbytes)


def flat_bytes(storage: torch.UntypedStorage, start: int, nbytes: int) -> torch.Tensor:
    """Return a range of a storage as a flat uint8 tensor."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, start, (nbytes,), (1,))
