"""Saves parameters for autograd by their position in the parameter, not by memory address.

So a layer that is read in place in forward and copied before backward (DFGB) runs backward with the copy, and so does a
layer that was copied in forward, although its parameter is back in host memory by then.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from fastio.hybrid.memory.layers import Slot
from fastio.offload.autograd.hooks import Kept, check_version, describe


class ParameterLocator(Protocol):
    """Knows where parameters are."""

    def find(self, tensor: torch.Tensor) -> tuple[Slot, int] | None:
        """Return the parameter whose memory (host or device) holds the tensor, and its byte offset; None if none."""

    def current(self, slot: Slot) -> torch.Tensor:
        """Return the parameter where backward is to read it, ready to be read."""


class SavedParameter:
    """A parameter, or a view of one, that autograd saved. Holds no bytes."""

    __slots__ = ("_description", "_dtype", "_locator", "_shape", "_shift", "_slot", "_stride", "_version")

    def __init__(self, locator: ParameterLocator, slot: Slot, shift: int, tensor: torch.Tensor) -> None:
        self._locator = locator
        self._slot = slot
        self._shift = shift
        self._dtype, self._shape, self._stride = tensor.dtype, tensor.shape, tensor.stride()
        self._version = slot.parameter._version
        self._description = describe(tensor)

    def unpack(self) -> torch.Tensor:
        """Return the values from their current place; RuntimeError if the parameter changed since."""
        check_version(self._description, self._version, self._slot.parameter._version)
        base = self._locator.current(self._slot)
        offset = base.storage_offset() * base.element_size() + self._shift
        empty = torch.empty(0, dtype=self._dtype, device=base.device)
        return empty.set_(base.untyped_storage(), offset // empty.element_size(), self._shape, self._stride)


class ParameterPack:
    """A pack hook of :class:`torch.autograd.graph.saved_tensors_hooks` that replaces parameters.

    ``beneath``: the pack hook of an Offload, which gets all other tensors (and knows this hook by that name). Without
    one they are kept.
    """

    __slots__ = ("_locator", "beneath")

    def __init__(self, locator: ParameterLocator, beneath: Callable[[torch.Tensor], Any] = Kept) -> None:
        self._locator = locator
        self.beneath = beneath

    def __call__(self, tensor: torch.Tensor) -> Any:
        """Return what autograd keeps: its ``unpack`` returns the tensor."""
        place = self._locator.find(tensor)
        return self.beneath(tensor) if place is None else SavedParameter(self._locator, *place, tensor)
