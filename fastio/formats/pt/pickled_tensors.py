"""Finds the tensors and plain values in the outline of a torch pickle, and which of its classes a safe load refuses."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch

from fastio.errors import quoted, shortened
from fastio.formats.pt.pickle_outline import Global, Node, Outline, Persistent
from fastio.sizes import exact_size

_UTILS = "torch._utils"
_TENSORS = {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_qtensor"}
_AROUND_A_TENSOR = {"_rebuild_parameter", "_rebuild_parameter_with_state"}
_LONGEST_NAME = 1000  # characters
_DTYPE_OF_V3 = 6  # index of _rebuild_tensor_v3's dtype among its arguments


class PickledTensor(NamedTuple):
    """A tensor over the storage in ``record``, which has ``storage_nbytes`` bytes. ``offset`` is in elements."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    record: str
    storage_nbytes: int


class Found(NamedTuple):
    """What one place in a pickle holds: a tensor, a plain value as text, or the ``problem`` with it."""

    name: str
    tensor: PickledTensor | None
    value: str = ""
    problem: str = ""


def refused(outline: Outline) -> list[str]:
    """The classes and functions that ``weights_only=True`` refuses."""
    from torch import _weights_only_unpickler

    allowed = _weights_only_unpickler._get_allowed_globals()
    return [shortened(name) for name in outline.globals if str(name) not in allowed]


def find(outline: Outline) -> Iterator[Found]:
    """Yield tensors and values in the order of the pickle, named by their keys, joined by dots.

    A container is entered once, however often it is referred to, and none whose name has more than 1000 characters: so
    the names of a hostile pickle take no more than that times its length.
    """
    entered: set[int] = set()
    waiting: list[tuple[str, object]] = [("", outline.root)]
    while waiting:
        name, found = waiting.pop()
        if isinstance(found, Persistent):
            yield Found(name, None, "a storage")
        elif not isinstance(found, Node | tuple):
            yield Found(name, None, str(found) if isinstance(found, Global) else quoted(found))
        else:
            try:
                tensor = _tensor(found)
            except (ValueError, TypeError, IndexError) as error:
                yield Found(name, None, problem=f"a malformed tensor: {error}")
                continue
            if tensor is not None:
                yield Found(name, tensor)
            elif len(name) > _LONGEST_NAME:
                yield Found(name, None, problem="what is in it is nested too deep to be listed")
            elif id(found) not in entered:
                entered.add(id(found))
                begin = f"{name}." if name else ""
                waiting += [(f"{begin}{shortened(key)}", value) for key, value in reversed(_children(found))]


def _children(found: Node | tuple[object, ...]) -> list[tuple[object, object]]:
    if isinstance(found, tuple):
        return list(enumerate(found))
    arguments = found.arguments if isinstance(found.arguments, tuple) else (found.arguments,)
    state = found.state
    within = state.items if isinstance(state, Node) else [] if state is None else [("state", state)]
    return [*enumerate(arguments), *found.items, *within]


def _tensor(found: object) -> PickledTensor | None:
    """The tensor that a node stands for; None if it stands for something else. ValueError if it is malformed."""
    while isinstance(found, Node) and isinstance(found.function, Global) and isinstance(found.arguments, tuple):
        module, name = found.function
        arguments = found.arguments
        if module == _UTILS and name in _AROUND_A_TENSOR:
            found = arguments[0]
        elif (module, name) == ("torch._tensor", "_rebuild_from_type_v2"):
            found = Node("object", arguments[0], arguments[2])
        elif module == _UTILS and name in _TENSORS:
            return _described(name, arguments)
        else:
            return None
    return None


def _described(name: str, arguments: tuple[object, ...]) -> PickledTensor:
    storage, offset, size, stride, *_ = arguments
    if not isinstance(storage, Persistent) or not isinstance(storage.identity, tuple) or len(storage.identity) != 5:
        raise ValueError("its storage is none of torch's")
    _, kind, key, _, numel = storage.identity
    stored = _storage_dtype(kind)
    dtype = _dtype(arguments[_DTYPE_OF_V3]) if name == "_rebuild_tensor_v3" else stored
    shape, strides = _numbers(size), _numbers(stride)
    (start, elements) = _numbers((offset, numel))
    if len(shape) != len(strides):
        raise ValueError(f"it has {len(shape)} lengths and {len(strides)} strides")
    nbytes = elements * stored.itemsize
    if 0 not in shape:
        last = start + sum((length - 1) * step for length, step in zip(shape, strides, strict=True))
        if (last + 1) * dtype.itemsize > nbytes:
            raise ValueError(f"its shape {quoted(shape)} needs more than the {exact_size(nbytes)} of its storage")
    return PickledTensor(dtype, shape, strides, start, f"data/{shortened(key)}", nbytes)


def _numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, Node) and isinstance(value.arguments, tuple) and value.arguments:  # a torch.Size
        value = value.arguments[0]
    if not isinstance(value, tuple):
        raise ValueError(f"expected a tuple of numbers, found {type(value).__name__}")
    for number in value:
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < 1 << 63:
            raise ValueError(f"expected numbers from 0 to 2^63, found {quoted(number)}")
    return value


def _dtype(named: object) -> torch.dtype:
    dtype = getattr(torch, named.name, None) if isinstance(named, Global) and named.module == "torch" else None
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch {torch.__version__} has no dtype {shortened(named)}")
    return dtype


def _storage_dtype(kind: object) -> torch.dtype:
    dtype = _storage_dtypes().get(kind.name) if isinstance(kind, Global) else None
    if dtype is None:
        raise ValueError(f"torch {torch.__version__} has no storage {shortened(kind)}")
    return dtype


@functools.cache
def _storage_dtypes() -> dict[str, torch.dtype]:
    # Not `dtype`, which warns.
    classes = {kind.__name__: getattr(kind, "_dtype", None) for kind in torch._storage_classes}
    return {name: dtype for name, dtype in classes.items() if isinstance(dtype, torch.dtype)} | {
        "UntypedStorage": torch.uint8
    }
