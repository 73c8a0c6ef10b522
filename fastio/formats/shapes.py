"""Checks a shape from a file, of any length and with any numbers, against the number of bytes stored."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fastio.sizes import exact_size

_MOST = 1 << 63  # torch's sizes have 63 bits
_SHOWN = 200  # characters of a shape in a message


def problem(shape: Sequence[int], dtype: torch.dtype, description: str, found: int) -> str:
    """Return why ``found`` bytes are not a tensor of that shape and dtype; empty if they are.

    ``description`` is the dtype's name in the file.
    """
    needed = _nbytes(shape, dtype.itemsize)
    is_tensor = max(shape, default=0) < _MOST
    if needed == found and is_tensor:
        return ""
    text = ", ".join(map(str, shape[:_SHOWN]))
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."
    if needed == found:
        return f"its shapes cannot be tensors: ({text}) has a length of 2^63 or more"
    needs = exact_size(needed) if needed < _MOST else "more bytes than there can be"
    return f"shape ({text}) of {description} needs {needs}, found {exact_size(found)}"


def _nbytes(shape: Sequence[int], itemsize: int) -> int:
    """Return the bytes of a tensor, at most 2^63: the full product of a million lengths would take hours.

    A shape with a 0 has 0 bytes here; torch refuses those that are too large.
    """
    if 0 in shape:
        return 0
    found = itemsize
    for length in shape:
        found *= length
        if found >= _MOST:
            return _MOST
    return found
