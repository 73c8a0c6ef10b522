"""get_slice: reads the part of a stored tensor that it is indexed with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from fastio.errors import quoted
from fastio.models.part_batches import Part
from fastio.models.selection import select
from fastio.runtime.handled_errors import HandledErrors
from fastio.url_secrets import hide_secrets


class TensorSlice:
    """A stored tensor, of which indexing reads a part."""

    def __init__(self, part: Part, read: Callable[[Part], torch.Tensor]) -> None:
        self._part = part
        self._read = read

    def __repr__(self) -> str:
        part = self._part
        shape = quoted(self.get_shape())
        return (
            f"<fastio TensorSlice {quoted(part.name)}: {self.get_dtype()} {shape}, in {hide_secrets(part.file.path)}>"
        )

    def get_shape(self) -> list[int]:
        """Return the shape in the file's header."""
        return list(self._part.entry.stored_shape)

    def get_dtype(self) -> str:
        """Return the dtype's name in the file's header, such as ``"BF16"``."""
        return self._part.entry.stored_dtype

    def __getitem__(self, index: Any) -> torch.Tensor:
        """Read what ``index`` selects, as indexing of the whole tensor would return it, in memory of its own.

        Integers, slices, ``...`` and None read what they select: rows and columns as they are; of columns that are
        narrower than 512 bytes, in rows shorter than 16 KiB, the rows are read and the rest is dropped. Lists, masks
        and tensors read the whole tensor first. Raises what torch raises for an index that does not fit.
        """
        part = self._part
        wanted = selected(part, index)
        if wanted is not None:
            return self._read(wanted)
        tensor = self._read(part)
        with _with_place(part):
            return tensor[index].clone()


def selected(part: Part, index: Any) -> Part | None:
    """What ``index`` selects of a part that is a whole tensor; None for an index that needs all of it first.

    Raises torch's IndexError, ValueError or TypeError, with the file, the tensor and its shape.
    """
    if part.entry.stride is not None:  # its elements are not one behind the other
        return None
    with _with_place(part):
        selection = select(part.entry.shape, index)
    return None if selection is None else part.selected(selection)


def _with_place(part: Part) -> HandledErrors[Exception]:
    """Inside, errors of an index get the file, the tensor and its shape."""
    return HandledErrors((IndexError, ValueError, TypeError), partial(_raise_with_place, part))


def _raise_with_place(part: Part, error: Exception) -> None:
    shape = quoted(part.entry.shape)
    raise type(error)(f"{part.file.path}: {quoted(part.name)} has shape {shape}: {error}") from None
