"""Tensors that view a part of a storage, pickled as their clones: without what lies around them."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import torch


class CloningPickle(SimpleNamespace):
    """A pickle module of ``torch.save`` with which tensors are written alone; ``module`` is what it does it by."""


def cloning(module: Any) -> CloningPickle:
    """``module`` (``pickle``, or what has its functions), but tensors that view a part of a storage become clones.

    Views of the very same elements become one, so what is tied stays tied.
    """

    class Pickler(module.Pickler):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self._protocol = named.get("protocol", pickle.DEFAULT_PROTOCOL)
            self._clones: dict[Any, torch.Tensor] = {}

        def reducer_override(self, obj: Any) -> Any:
            # Of a subclass, a parameter for one, the plain tensor that it hands on is met here in its turn.
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
    """Whether its storage holds more than its elements."""
    return tensor.layout == torch.strided and tensor.nbytes < tensor.untyped_storage().nbytes()
