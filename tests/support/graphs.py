"""Compares two objects in everything that torch.save keeps: types, values, and shared objects."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any

import torch

ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type)


def differ(one: Any, other: Any, into: bool = False) -> str:
    """The first difference between two objects, as a path and the reason, or an empty string.

    They must have the same types, equal values, tensors equal bit by bit with the same strides, and the same graph:
    objects and storages are shared at the same places. Objects of any class are compared by their attributes. With
    ``into``, for a restore into a live state, storages and tuples may be shared in only one of the two.
    """
    return _Comparison(into).differ(one, other, "")


class _Comparison:
    def __init__(self, into: bool) -> None:
        self._into = into
        self._partner: dict[int, int] = {}
        self._back: dict[int, int] = {}
        self._held: list[Any] = []

    def differ(self, one: Any, other: Any, path: str) -> str:
        if type(one) is not type(other):
            return f"{path}: {type(one).__name__} and {type(other).__name__}"
        if isinstance(one, ATOMS):
            return "" if one == other or (one != one and other != other) else f"{path}: {one!r} and {other!r}"
        known = self._partner.get(id(one))
        if known is not None or id(other) in self._back:
            same = known == id(other) and self._back.get(id(other)) == id(one)
            return "" if same else f"{path}: is shared in one of them alone"
        if not (self._into and isinstance(one, tuple)):
            self._pair(one, other, id(one), id(other))
        if isinstance(one, torch.Tensor):
            return self._tensors(one, other, path)
        for key, first, second in _parts(one, other):
            if found := self.differ(first, second, f"{path}.{key}"):
                return found
        return ""

    def _pair(self, one: Any, other: Any, first: int, second: int) -> None:
        self._partner[first], self._back[second] = second, first
        self._held += [one, other]

    def _tensors(self, one: torch.Tensor, other: torch.Tensor, path: str) -> str:
        for name in ("dtype", "shape", "layout", "requires_grad", "device", "is_quantized"):
            if getattr(one, name) != getattr(other, name):
                return f"{path}: {name} {getattr(one, name)} and {getattr(other, name)}"
        if found := self.differ(vars(one), vars(other), f"{path}.__dict__"):
            return found
        if hasattr(type(one), "__tensor_flatten__"):
            names, _ = one.__tensor_flatten__()
            parts = ((name, getattr(one, name), getattr(other, name)) for name in names)
            return next((found for name, *both in parts if (found := self.differ(*both, f"{path}.{name}"))), "")
        if one.layout != torch.strided:
            return "" if torch.equal(one.to_dense(), other.to_dense()) else f"{path}: values"
        if (one.stride(), one.is_conj(), one.is_neg()) != (other.stride(), other.is_conj(), other.is_neg()):
            return f"{path}: strides {one.stride()} and {other.stride()}, or bits of conj and neg"
        if not _same_bits(one, other):
            return f"{path}: values"
        return self._share(one, other, path) if one.numel() and not self._into else ""

    def _share(self, one: torch.Tensor, other: torch.Tensor, path: str) -> str:
        if one.storage_offset() != other.storage_offset():
            return f"{path}: offsets {one.storage_offset()} and {other.storage_offset()}"
        first, second = -one.untyped_storage().data_ptr(), -other.untyped_storage().data_ptr()
        if first not in self._partner and second not in self._back:
            self._pair(one, other, first, second)
        same = self._partner.get(first) == second and self._back.get(second) == first
        return "" if same else f"{path}: its storage is shared in one of them alone"


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_quantized:
        one, other = one.int_repr(), other.int_repr()
    first, second = (tensor.detach().resolve_conj().resolve_neg().contiguous().flatten() for tensor in (one, other))
    return first.numel() == 0 or torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def _parts(one: Any, other: Any) -> Iterator[tuple[str, Any, Any]]:
    """The parts of two objects of one type, as (name, part of one, part of the other)."""
    if isinstance(one, dict):
        yield "keys", tuple(_keys(one)), tuple(_keys(other))
        if isinstance(one, defaultdict):
            yield "default_factory", one.default_factory, other.default_factory
        for key in _keys(one):
            if key in other:
                yield f"[{key!r}]", dict.__getitem__(one, key), dict.__getitem__(other, key)
    elif isinstance(one, (list, tuple)):
        yield "length", len(one), len(other)
        for at, (first, second) in enumerate(zip(one, other, strict=False)):
            yield f"[{at}]", first, second
    elif isinstance(one, (set, frozenset)):
        yield "values", sorted(map(repr, one)), sorted(map(repr, other))
    attributes = getattr(type(one), "__dict__", {}) and _attributes(one)
    if attributes is None:
        if not isinstance(one, (dict, list, tuple, set, frozenset)):
            yield "value", repr(one), repr(other)
    else:
        others = _attributes(other) or {}
        yield "names", sorted(attributes), sorted(others)
        for name in attributes:
            if name in others:
                yield name, attributes[name], others[name]


def _keys(one: dict[Any, Any]) -> list[Any]:
    return list(OrderedDict.keys(one) if isinstance(one, OrderedDict) else dict.keys(one))


def _attributes(one: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = object.__getattribute__(one, "__dict__")
    except AttributeError:
        return None
    return found
