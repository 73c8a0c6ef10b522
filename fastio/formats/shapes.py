"""Shapes as files have them, of any length and with any numbers: whether so many bytes are such a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch

_MOST = 1 << 63  # torch counts in 63 bits
_SHOWN = 200  # characters


def problem(shape: Sequence[int], dtype: torch.dtype, description: str, found: int) -> str:
    """Why ``found`` bytes are no tensor of that shape and dtype, whose name in the file is given; empty if they are."""
    needed = _nbytes(shape, dtype.itemsize)
    if needed == found:
        return ""
    text = ", ".join(map(str, shape[:_SHOWN]))
    if len(text) > _SHOWN:
        text = text[:_SHOWN] + "..."
    needs = f"{needed} bytes" if needed < _MOST else "more bytes than there can be"
    return f"shape ({text}) of {description} needs {needs}, found {found}"


def _nbytes(shape: Sequence[int], itemsize: int) -> int:
    """2^63 as soon as there are as many: the product of a million lengths would take hours.

    Which shapes with a 0 in them are too large is torch's to say.
    """
    if 0 in shape:
        return 0
    found = itemsize
    for length in shape:
        found *= length
        if found >= _MOST:
            return _MOST
    return found
