"""Describes objects for which ``repr`` would be too long, or fail."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_MOST_LINES = 200


def describe(obj: Any) -> str:
    """An object as an indented tree; tensors are shown by their properties, not by their values."""
    lines = list(_lines("", obj, "", {}))
    cut = [f"... {len(lines) - _MOST_LINES} lines ..."] if len(lines) > _MOST_LINES else []
    return "\n".join([*lines[: _MOST_LINES // 2], *cut, *lines[max(_MOST_LINES // 2, len(lines) - _MOST_LINES // 2) :]])


def _lines(name: str, obj: Any, indent: str, seen: dict[int, int]) -> Iterator[str]:
    what = f"{indent}{name}{': ' if name else ''}"
    parts = dict(_parts(obj))
    if isinstance(obj, torch.Tensor):
        yield f"{what}{_tensor(obj)}{_number(obj, seen)}"
    elif parts or isinstance(obj, (list, dict)):
        known = id(obj) in seen
        yield f"{what}{type(obj).__name__}{_number(obj, seen)}{' (again)' if known else ''}"
        if known:
            return
    else:
        yield f"{what}{obj!r:.100}"
    for key, part in parts.items():
        yield from _lines(key, part, indent + "  ", seen)


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", part) for key, part in obj.items())
    elif isinstance(obj, (list, tuple)) or type(obj).__name__ == "deque":
        yield from ((f"[{number}]", part) for number, part in enumerate(obj))
    if not isinstance(obj, type) and type(obj).__module__ != "builtins":
        yield from ((f".{key}", part) for key, part in getattr(obj, "__dict__", {}).items())
        if isinstance(getattr(type(obj), "__slots__", None), tuple) and not isinstance(obj, tuple):
            yield from ((f".{key}", getattr(obj, key, None)) for key in type(obj).__slots__)


def _number(obj: Any, seen: dict[int, int]) -> str:
    return f" #{seen.setdefault(id(obj), len(seen) + 1)}"


def _tensor(tensor: torch.Tensor) -> str:
    said = [type(tensor).__name__, str(tensor.dtype), str(tensor.layout)]
    if not tensor.is_nested:
        said.append(str(tuple(tensor.shape)))
    if tensor.layout == torch.strided and not tensor.is_nested and not hasattr(tensor, "__tensor_flatten__"):
        storage = tensor.untyped_storage()
        said.append(f"stride {tensor.stride()} offset {tensor.storage_offset()}")
        said.append(f"storage {storage._cdata:x} of {storage.nbytes()} bytes")
    flags = ("requires_grad", "is_meta", "is_quantized", "is_nested")
    said += [flag for flag in flags if getattr(tensor, flag)]
    said += [name for name in ("is_conj", "is_neg") if getattr(tensor, name)()]
    return " ".join(said)
