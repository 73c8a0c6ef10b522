"""Names the tensors in nested dicts, lists and tuples: by their keys, joined by dots, as ``fastio inspect`` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fastio.errors import FormatError, quoted

_LONGEST_NAME = 1000  # characters: the names of a hostile object take no more than that times its size


def named_tensors(where: str, obj: Any, kinds: type | tuple[type, ...] = torch.Tensor) -> Iterator[tuple[str, Any]]:
    """Yield the tensors with their names, in order. A container is entered once, and what is no tensor is left out.

    ``kinds`` are the classes of what counts as a tensor.

    FormatError, which begins with ``where``, for two tensors of one name, and for a name of more than 1000 characters.
    """
    entered: set[int] = set()
    seen: set[str] = set()
    waiting: list[tuple[str, Any]] = [("", obj)]
    while waiting:
        name, found = waiting.pop()
        if isinstance(found, kinds):
            if name in seen:
                raise FormatError(f"{where}: two tensors have the name {quoted(name)}; rename one, or leave one out")
            seen.add(name)
            yield name, found
        elif isinstance(found, dict | list | tuple) and id(found) not in entered:
            if len(name) > _LONGEST_NAME:
                raise FormatError(f"{where}: what is in {quoted(name)} is nested too deep; use fewer levels")
            entered.add(id(found))
            items = list(found.items()) if isinstance(found, dict) else list(enumerate(found))
            begin = f"{name}." if name else ""
            waiting += [(f"{begin}{key}", value) for key, value in reversed(items)]
