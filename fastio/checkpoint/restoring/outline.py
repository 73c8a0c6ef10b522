"""The outline of a pickle: which tensors it has and where they are in it, without running any of what it names.

Names of the pickle stand for inert classes, tensors for notes of where their bytes lie, so that what is read, and into
which memory, is known before torch unpickles anything.
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


class NotedStorage(NamedTuple):
    """A storage: the name of its record, and the dtype of its elements, None if only tensors have one."""

    record: str
    dtype: torch.dtype | None


class NotedTensor:
    """A plain tensor or parameter that takes up ``shape`` and ``stride`` elements of a storage from ``offset`` on."""

    __slots__ = ("dtype", "offset", "record", "shape", "stride")

    def __init__(self, record: str, dtype: torch.dtype, offset: int, shape: Any, stride: Any) -> None:
        self.record, self.dtype, self.offset = record, dtype, offset
        self.shape, self.stride = tuple(shape), tuple(stride)


class Opaque:
    """Whatever a pickle makes by a name of its own: it keeps all that the pickle gives it, as ``held``."""

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
    """The tree that a pickle makes, of dicts, OrderedDicts, lists, tuples, atoms, notes and opaque objects.

    ``plain`` are the records that the pickle uses for one tensor at one place in the tree, and for nothing else.
    ``opaque`` are those that code named by the pickle may look at while torch unpickles it.
    """

    tree: Any
    plain: frozenset[str]
    opaque: frozenset[str]


def outline(data: bytes) -> Outline | None:
    """The outline of a pickle that torch wrote; None if it cannot be told."""
    try:
        tree = _Unpickler(io.BytesIO(data)).load()
        uses: Counter[str] = Counter()
        shared, makes = [], []
        for one, is_again in _reached(tree):
            kind = type(one)
            if kind in _NOTES:
                uses[one.record] += 1
            if is_again or kind is NotedStorage:
                shared.append(one)
            elif kind is Opaque:
                makes.append(one)
        opaque = records_of(makes)
        plain = {record for record, count in uses.items() if count == 1} - records_of(shared) - opaque
    except Exception:  # whatever a pickle can make of inert objects: then nothing is known of it
        return None
    return Outline(tree, frozenset(plain), frozenset(opaque))


def records_of(part: Any) -> set[str]:
    """The records of all storages that a part of an outline holds."""
    return {one.record for one, _ in _reached(part) if type(one) in _NOTES}


def freed_tensors(data: bytes, empty: Collection[str]) -> list[str]:
    """Where a pickle has tensors with elements whose storage is one of the ``empty`` records."""
    found = outline(data)
    left = [] if found is None else [("state", found.tree)]
    paths = []
    seen: set[int] = set()
    while left:
        path, one = left.pop()
        if type(one) is NotedTensor and one.record in empty and 0 not in one.shape:
            paths.append(path)
        if is_container(one) and id(one) not in seen:
            seen.add(id(one))
            left.extend((f"{path}[{key!r}]", value) for key, value in entries(one))
    return paths


def _reached(tree: Any) -> Iterator[tuple[Any, bool]]:
    """All that is in a tree but atoms, once for each reference to it, and whether it was met before."""
    seen: set[int] = set()
    left = [tree]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in ATOMS:
            continue
        is_again = id(one) in seen
        yield one, is_again
        if is_again:
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            left.extend(one.keys())
            left.extend(one.values())
            left.extend(vars(one).values() if kind is OrderedDict else ())
        elif kind in (list, tuple):
            left.extend(one)
        elif kind is Opaque:
            left.extend(one.held)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: io.BytesIO) -> None:
        super().__init__(data, encoding="utf-8")

    def find_class(self, module: str, name: str) -> Any:
        known = _CALLS.get((module, name))
        if known is None and module == "torch":
            known = _STORAGES.get(name) or vars(torch).get(name)
            known = known if isinstance(known, torch.dtype) else None
        return known or Opaque

    def persistent_load(self, saved: Any) -> NotedStorage:
        kind, storage, key, _, _ = saved
        if kind != "storage" or type(key) is not str:
            raise pickle.UnpicklingError("this is no storage of torch's")
        return NotedStorage(f"data/{key}", storage if isinstance(storage, torch.dtype) else None)


def _rebuild_tensor(
    storage: Any, offset: Any, shape: Any, stride: Any, requires_grad: Any, hooks: Any, metadata: Any = None
) -> Any:
    is_plain = type(storage) is NotedStorage and storage.dtype is not None and not hooks and not metadata
    if not is_plain or type(requires_grad) is not bool:
        return Opaque(storage, hooks, metadata)
    return NotedTensor(storage.record, storage.dtype, offset, shape, stride)


def _rebuild_parameter(data: Any, requires_grad: Any, hooks: Any) -> Any:
    return data if type(data) is NotedTensor and not hooks else Opaque(data, hooks)


_NOTES = (NotedStorage, NotedTensor)
_CALLS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
}
