"""Pickles tensors that view part of a storage as clones, so that the rest of the storage is not written."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch


class CloningPickle(SimpleNamespace):
    """A pickle module for ``torch.save`` that writes clones of views; ``module`` is the pickle module it wraps."""


def cloning(module: Any) -> CloningPickle:
    """Return a pickle ``module`` whose pickler clones tensors that view part of a storage.

    ``module`` is ``pickle`` or has its functions. Views of the same elements become one clone, so tied tensors stay
    tied.
    """

    class Pickler(module.Pickler):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._protocol = named.get("protocol", pickle.DEFAULT_PROTOCOL)
            self._clones: dict[Any, torch.Tensor] = {}

        def reducer_override(self, obj: Any) -> Any:
            # A subclass such as Parameter reduces to a plain tensor, which reaches this method later.
            if type(obj) is torch.Tensor and _is_part(obj):
                return self._clone(obj).__reduce_ex__(self._protocol)
            inner = getattr(super(), "reducer_override", None)
            return NotImplemented if inner is None else inner(obj)

        def _clone(self, tensor: torch.Tensor) -> torch.Tensor:
            at = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
            key = (*at, tensor.is_conj(), tensor.is_neg())
            if key not in self._clones:
                self._clones[key] = tensor.detach().clone()
            clone = self._clones[key].detach().requires_grad_(tensor.requires_grad)
            clone.__dict__.update(tensor.__dict__)
            return clone

    return CloningPickle(**{**vars(module), "Pickler": Pickler, "module": module})


def _is_part(tensor: torch.Tensor) -> bool:
    """Return whether the tensor's storage holds more than its elements."""
    return tensor.layout == torch.strided and tensor.nbytes < tensor.untyped_storage().nbytes()
