"""Parts of a tensor as boxes of its indices. Pure: numbers in, decisions out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import NamedTuple, Protocol

import torch


class HasBox(Protocol):
    """``size`` elements from the index ``begin`` on, in each dimension."""

    @property
    def begin(self) -> tuple[int, ...]: ...
    @property
    def size(self) -> tuple[int, ...]: ...


class Box(NamedTuple):
    """A part of a tensor: ``size`` elements from the index ``begin`` on, in each dimension."""

    begin: tuple[int, ...]
    size: tuple[int, ...]


def tile(boxes: Sequence[HasBox], shape: tuple[int, ...]) -> bool:
    """Whether boxes, sorted by their begin, hold every element of a shape once."""
    return _fill(boxes, shape) and (are_rows(boxes, shape) or _are_apart(boxes))


def are_rows(boxes: Sequence[HasBox], shape: tuple[int, ...]) -> bool:
    """Whether sorted boxes that fill a shape are rows of it, one behind the other."""
    if len(boxes) <= 1 or not shape:
        return True
    is_rows = all(box.size[1:] == shape[1:] for box in boxes)
    return is_rows and all(one.begin[0] + one.size[0] == other.begin[0] for one, other in pairwise(boxes))


def _fill(boxes: Sequence[HasBox], shape: tuple[int, ...]) -> bool:
    """Whether boxes lie in a shape, and have as many elements."""
    are_inside = all(
        len(box.begin) == len(box.size) == len(shape)
        and all(0 <= at <= size - count for at, count, size in zip(box.begin, box.size, shape, strict=True))
        for box in boxes
    )
    return are_inside and sum(prod(box.size) for box in boxes) == prod(shape)


def _are_apart(boxes: Sequence[HasBox]) -> bool:
    """Whether no two boxes share an element."""
    held = [box for box in boxes if 0 not in box.size]
    begins = torch.tensor([box.begin for box in held])
    ends = begins + torch.tensor([box.size for box in held])
    return not any(
        ((begins[index] < ends[index + 1 :]) & (begins[index + 1 :] < ends[index])).all(1).any()
        for index in range(len(held) - 1)
    )
