"""What autograd keeps of a parameter: where it was in the parameter, not where its bytes lay.

A layer that is read in place in forward and copied before backward (DFGB) thus computes backward with the copy, and a
layer that was copied with that copy, though the parameter itself is back in host memory by then.
"""

from __future__ import annotations

from typing import Protocol

import torch

from fastio.hybrid.memory.layers import Slot
from fastio.offload.autograd.hooks import Kept, check_version, describe


class Residence(Protocol):
    """Whoever knows where parameters lie."""

    def find(self, tensor: torch.Tensor) -> tuple[Slot, int] | None:
        """The parameter in whose memory, host's or device's, the tensor lies, and how many bytes from its beginning."""

    def now(self, slot: Slot) -> torch.Tensor:
        """The parameter where backward is to read it, ready to be read."""


class OfParameter:
    """A parameter, or a view of one, that autograd saved. Holds no bytes."""

    __slots__ = ("_description", "_dtype", "_residence", "_shape", "_shift", "_slot", "_stride", "_version")

    def __init__(self, residence: Residence, slot: Slot, shift: int, tensor: torch.Tensor) -> None:
        self._residence = residence
        self._slot = slot
        self._shift = shift
        self._dtype, self._shape, self._stride = tensor.dtype, tensor.shape, tensor.stride()
        self._version = slot.parameter._version
        self._description = describe(tensor)

    def unpack(self) -> torch.Tensor:
        """The same values from wherever they are to be read; RuntimeError where the parameter has changed since."""
        check_version(self._description, self._version, self._slot.parameter._version)
        base = self._residence.now(self._slot)
        offset = base.storage_offset() * base.element_size() + self._shift
        empty = torch.empty(0, dtype=self._dtype, device=base.device)
        return empty.set_(base.untyped_storage(), offset // empty.element_size(), self._shape, self._stride)


class Saved:
    """The two hooks of :class:`torch.autograd.graph.saved_tensors_hooks`. Tensors of no parameter stay as they are."""

    def __init__(self, residence: Residence) -> None:
        self._residence = residence

    def pack(self, tensor: torch.Tensor) -> Kept | OfParameter:
        """The pack hook."""
        place = self._residence.find(tensor)
        return Kept(tensor) if place is None else OfParameter(self._residence, *place, tensor)

    @staticmethod
    def unpack(packed: Kept | OfParameter) -> torch.Tensor:
        """The unpack hook."""
        return packed.unpack()
