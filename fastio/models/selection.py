"""Which elements of a stored tensor an index selects, and which bytes of the file to read for them.

Everything here is arithmetic on shapes: nothing is read, and no memory is made.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

# Runs are read one by one, unless they are shorter than this and so are the gaps between them: then a block of many is
# read, and the gaps are dropped. Measured on cached files: a request takes as long as copying 3 KiB, and the block
# costs memory and a second copy. What a direct read skips of the gaps it decides by itself.
SHORTEST_RUN, SHORTEST_GAP = 512, 16 << 10


class Selection(NamedTuple):
    """Elements of a contiguous tensor as a view of it: all three count elements. Strides are not negative."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    start: int

    @property
    def numel(self) -> int:
        """The number of selected elements."""
        return math.prod(self.shape)

    @property
    def extent(self) -> int:
        """The number of elements from the first selected one to the last, both included. There must be one."""
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.stride, strict=True))

    @property
    def is_contiguous(self) -> bool:
        """Whether the elements lie one behind the other."""
        return self.extent == self.numel


class Blocks(NamedTuple):
    """What to read for a selection: from each of ``starts`` of the tensor on, ``repeats`` blocks, ``stride`` apart.

    A block has ``length`` elements, of which ``inner``, (size, stride) of each dimension, are selected; ``inner`` is
    empty if all are. Blocks are sorted and apart. All numbers but ``repeats`` count elements.
    """

    starts: list[int]
    repeats: int
    stride: int
    length: int
    inner: list[tuple[int, int]]


def whole(shape: Sequence[int]) -> Selection:
    """The selection of every element."""
    stride = list(itertools.accumulate(reversed(shape[1:]), operator.mul, initial=1))[::-1] if shape else []
    return Selection(tuple(shape), tuple(stride), 0)


def select(shape: Sequence[int], index: Any) -> Selection | None:
    """Return what ``index`` selects, as torch does; None for an index by lists, masks or tensors, which is no view.

    Raises what torch raises for an index that does not fit: IndexError, ValueError, TypeError.
    """
    plain = tuple(map(_plain, index)) if isinstance(index, tuple) else _plain(index)
    if not all(map(_is_basic, plain if isinstance(plain, tuple) else (plain,))):
        return None
    view = torch.empty(shape, dtype=torch.uint8, device="meta")[plain]
    return Selection(tuple(view.shape), view.stride(), int(view.storage_offset()))


def blocks(selection: Selection, itemsize: int) -> Blocks:
    """Return the blocks to read for a selection of elements of ``itemsize`` bytes.

    Runs of at least 512 bytes, and those more than 16 KiB apart, are blocks of their own. So a slice along columns
    reads its own bytes, and whole rows only if it is narrow and the rows are short.
    """
    dimensions = [pair for pair in zip(selection.shape, selection.stride, strict=True) if pair[0] > 1]
    length = 1
    while dimensions and dimensions[-1][1] == length:
        length *= dimensions.pop()[0]
    inner: list[tuple[int, int]] = []
    run = length
    is_short = run * itemsize < SHORTEST_RUN
    while is_short and dimensions and (dimensions[-1][1] - length) * itemsize < SHORTEST_GAP:
        size, stride = dimensions.pop()
        inner.insert(0, (size, stride))
        length += (size - 1) * stride
    if inner and run > 1:
        inner.append((run, 1))
    repeats, step = dimensions.pop() if dimensions else (1, length)
    offsets = (range(0, size * stride, stride) for size, stride in dimensions)
    return Blocks([selection.start + sum(at) for at in itertools.product(*offsets)], repeats, step, length, inner)


def pieces(selection: Selection, most: int) -> Iterator[Selection]:
    """Split a selection, at least one element, until each piece extends over at most ``most`` elements, or is one run.

    The pieces are in the order of the elements, so their elements one behind the other are the selection's.
    """
    if selection.extent <= most or selection.is_contiguous:
        yield selection
        return
    axis = next(axis for axis, size in enumerate(selection.shape) if size > 1)
    half = selection.shape[axis] // 2
    for begin, size in ((0, half), (half, selection.shape[axis] - half)):
        shape = (*selection.shape[:axis], size, *selection.shape[axis + 1 :])
        start = selection.start + begin * selection.stride[axis]
        yield from pieces(Selection(shape, selection.stride, start), most)


def _plain(item: Any) -> Any:
    """An integer as an int, also if it is numpy's or a tensor of no dimensions; anything else as it is."""
    if isinstance(item, torch.Tensor):
        is_integer = item.ndim == 0 and not item.is_floating_point() and not item.is_complex()
        return int(item) if is_integer and item.dtype != torch.bool else item
    if isinstance(item, bool):
        return item
    try:
        return operator.index(item)
    except TypeError:
        return item


def _is_basic(item: Any) -> bool:
    return item is None or item is Ellipsis or isinstance(item, slice) or type(item) is int
