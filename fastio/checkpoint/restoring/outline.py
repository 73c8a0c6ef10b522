"""Outlines a pickle: finds its tensors and their places in the tree without running any code that it names.

Globals become inert classes, and tensors become records of where their bytes lie. So it is known before torch unpickles
anything which bytes to read, and into which memory.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import torch

from fastio.checkpoint.state import ATOMS, entries, is_container

_STORAGES: dict[str, torch.dtype] = {
    f"{name}Storage": dtype
    for name, dtype in (
        ("Double", torch.float64), ("Float", torch.float32), ("Half", torch.float16), ("Long", torch.int64),
        ("Int", torch.int32), ("Short", torch.int16), ("Char", torch.int8), ("Byte", torch.uint8), ("Bool", torch.bool),
        ("BFloat16", torch.bfloat16), ("ComplexDouble", torch.complex128), ("ComplexFloat", torch.complex64),
    )
}  # fmt: skip


class PickledStorage(NamedTuple):
    """A storage: the name of its record, and the dtype of its elements; None if only its tensors have a dtype."""

    record: str
    dtype: torch.dtype | None


class PickledTensor:
    """A plain tensor or parameter: a view of a storage with ``shape``, ``stride`` and ``offset``, in elements."""

    __slots__ = ("dtype", "offset", "record", "shape", "stride")

    def __init__(self, record: str, dtype: torch.dtype, offset: int, shape: Any, stride: Any) -> None:
        self.record, self.dtype, self.offset = record, dtype, offset
        self.shape, self.stride = tuple(shape), tuple(stride)


class Opaque:
    """Stands for an object that a pickle makes with another global; ``held`` is everything that the pickle gives it."""

    def __new__(cls, *arguments: Any) -> Opaque:
        made = super().__new__(cls)
        made.held = [*arguments]
        return made

    held: list[Any]

    def __init__(self, *arguments: Any) -> None: ...

    def __call__(self, *arguments: Any) -> Opaque:
        return Opaque(self, *arguments)

    def append(self, value: Any) -> None:
        self.held.append(value)

    add = __setstate__ = append

    def extend(self, values: Any) -> None:
        self.held.extend(values)

    update = extend

    def __setitem__(self, key: Any, value: Any) -> None:
        self.held += (key, value)


class Outline(NamedTuple):
    """The tree that a pickle makes: dicts, OrderedDicts, lists, tuples, atoms, storages, tensors and opaque objects.

    ``plain`` are the records that the pickle uses for one tensor at one place in the tree, and for nothing else.
    ``opaque`` are the records that code named by the pickle may read while torch unpickles it.
    """

    tree: Any
    plain: frozenset[str]
    opaque: frozenset[str]


def outline(data: bytes) -> Outline | None:
    """Return the outline of a pickle that torch wrote; None if it cannot be made."""
    try:
        tree = _Unpickler(io.BytesIO(data)).load()
        uses: Counter[str] = Counter()
        shared, opaque_objects = [], []
        for node, is_again in _walk(tree):
            kind = type(node)
            if kind in _PICKLED:
                uses[node.record] += 1
            if is_again or kind is PickledStorage:
                shared.append(node)
            elif kind is Opaque:
                opaque_objects.append(node)
        opaque = records_of(opaque_objects)
        plain = {record for record, count in uses.items() if count == 1} - records_of(shared) - opaque
    except Exception:  # a pickle may do anything with inert objects; then there is no outline
        return None
    return Outline(tree, frozenset(plain), frozenset(opaque))


def records_of(part: Any) -> set[str]:
    """Return the records of all storages in a part of an outline."""
    return {node.record for node, _ in _walk(part) if type(node) in _PICKLED}


def freed_tensors(data: bytes, empty: Collection[str]) -> list[str]:
    """Return the places of tensors in a pickle that have elements but whose storage is an ``empty`` record."""
    found = outline(data)
    left = [] if found is None else [("state", found.tree)]
    paths = []
    seen: set[int] = set()
    while left:
        path, node = left.pop()
        if type(node) is PickledTensor and node.record in empty and 0 not in node.shape:
            paths.append(path)
        if is_container(node) and id(node) not in seen:
            seen.add(id(node))
            left.extend((f"{path}[{key!r}]", value) for key, value in entries(node))
    return paths


def _walk(tree: Any) -> Iterator[tuple[Any, bool]]:
    """Yield (object, whether it was seen before) for each reference in a tree to an object that is not an atom."""
    seen: set[int] = set()
    left = [tree]
    while left:
        node = left.pop()
        kind = type(node)
        if kind in ATOMS:
            continue
        is_again = id(node) in seen
        yield node, is_again
        if is_again:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            left.extend(node.keys())
            left.extend(node.values())
            left.extend(vars(node).values() if kind is OrderedDict else ())
        elif kind in (list, tuple):
            left.extend(node)
        elif kind is Opaque:
            left.extend(node.held)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data, encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        known = _CALLS.get((module, name))
        if known is None and module == "torch":
            known = _STORAGES.get(name) or vars(torch).get(name)
            known = known if isinstance(known, torch.dtype) else None
        return known or Opaque

    def persistent_load(self, saved: Any) -> PickledStorage:
        kind, storage, key, _, _ = saved
        if kind != "storage" or type(key) is not str:
            raise pickle.UnpicklingError("this is not a storage of torch")
        return PickledStorage(f"data/{key}", storage if isinstance(storage, torch.dtype) else None)


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> Any:
    is_plain = type(storage) is PickledStorage and storage.dtype is not None and not hooks and not metadata
    if not is_plain or type(requires_grad) is not bool:
        return Opaque(storage, hooks, metadata)
    return PickledTensor(storage.record, storage.dtype, offset, shape, stride)


def _rebuild_parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
    return data if type(data) is PickledTensor and not hooks else Opaque(data, hooks)


_PICKLED = (PickledStorage, PickledTensor)
_CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}
