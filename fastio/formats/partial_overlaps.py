"""Finds tensors that share a part of their memory: values loaded into one would change the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

from fastio.formats import dense_tensors


class Saved(NamedTuple):
    """Where the saved tensor lies: ``start`` bytes into ``memory``, a file or storage; ``stride`` None: contiguous."""

    memory: Hashable
    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...] | None


class _Filled(NamedTuple):
    begin: int
    end: int
    number: int
    name: str
    tensor: torch.Tensor
    saved: Saved


def partial_overlap(targets: Iterable[tuple[str, torch.Tensor, Saved]]) -> tuple[str, str] | None:
    """Return the names of two tensors that share some bytes, but not all; None if there are none.

    Tensors that were saved sharing the same bytes are left out. The tensors must be dense; a tensor's own elements may
    lie apart, as those of a column do.
    """
    storages: dict[tuple[torch.device, int], list[_Filled]] = defaultdict(list)
    for number, (name, tensor, saved) in enumerate(targets):
        if tensor.numel() and not tensor.is_meta:
            where = (tensor.device, tensor.untyped_storage().data_ptr())
            storages[where].append(_Filled(*dense_tensors.span(tensor), number, name, tensor, saved))
    for filled in storages.values():
        before: list[_Filled] = []
        for one in sorted(filled) if len(filled) > 1 else ():
            before = [other for other in before if other.end > one.begin]
            for other in before:
                if _differs(one, other) and _shares_bytes(one, other) and not _was_saved_so(one, other):
                    return other.name, one.name
            before.append(one)
    return None


def _differs(one: _Filled, other: _Filled) -> bool:
    first, second = one.tensor, other.tensor
    places = [(found.storage_offset(), found.shape, found.stride(), found.dtype) for found in (first, second)]
    return places[0] != places[1]


def _shares_bytes(one: _Filled, other: _Filled) -> bool:
    """Whether two tensors whose spans overlap have a byte in common; NumPy solves it, and reads no memory."""
    if one.tensor.is_contiguous() and other.tensor.is_contiguous():
        return True
    return np.shares_memory(np.asarray(_Addresses(one)), np.asarray(_Addresses(other)))


class _Addresses:
    """A tensor as NumPy sees it, with addresses that count from its storage."""

    def __init__(self, filled: _Filled) -> None:
        size = filled.tensor.element_size()
        self.__array_interface__: dict[str, Any] = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(filled.tensor.shape),
            "strides": tuple(stride * size for stride in filled.tensor.stride()),
            "data": (4096 + filled.begin, True),  # 0 would be no address
        }


def _was_saved_so(one: _Filled, other: _Filled) -> bool:
    first, second = one.saved, other.saved
    is_apart_alike = second.start - first.start == other.begin - one.begin
    return first.memory == second.memory and is_apart_alike and _is_saved_so(one) and _is_saved_so(other)


def _is_saved_so(filled: _Filled) -> bool:
    tensor, saved = filled.tensor, filled.saved
    is_so = tensor.is_contiguous() if saved.stride is None else tensor.stride() == saved.stride
    return is_so and (tensor.dtype, tuple(tensor.shape)) == (saved.dtype, saved.shape)
