"""Compares the values of two tensors of one shape and dtype, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

PART = 1 << 20  # elements that are converted to 64 bits at a time
_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Difference(NamedTuple):
    """``elements`` of ``total`` differ. Two NaN are equal, a NaN and a number differ: those are ``one_nan``.

    ``absolute`` is the largest |a - b|, ``relative`` the largest |a - b| / max(|a|, |b|), each over the numbers that
    differ, computed in 64 bits. They are None for a dtype without arithmetic, whose bytes were compared. ``where`` is
    the index of the largest ``absolute``, or of the first element that differs; None if none does.
    """

    elements: int
    total: int
    one_nan: int
    absolute: float | None
    relative: float | None
    where: tuple[int, ...] | None = None


class _Part(NamedTuple):
    """The difference of two parts; ``at`` is the place of its ``where`` among the elements."""

    elements: int
    one_nan: int
    absolute: float | None
    relative: float | None
    at: int


def compare(first: torch.Tensor, second: torch.Tensor, atol: float = 0.0, rtol: float = 0.0) -> Difference:
    """Compare two tensors of one shape and dtype.

    Numbers differ if |a - b| > atol + rtol * |b|, b of the second, as for ``torch.allclose``; dtypes without
    arithmetic, and with both tolerances 0, if they are not equal.
    """
    found: Difference = Difference(0, first.numel(), 0, 0.0, 0.0)
    begin = 0
    for one, other in _parts(first.squeeze(), second.squeeze()):
        part = _compare(one.contiguous(), other.contiguous(), atol, rtol)
        is_first = part.elements > 0 and found.where is None
        is_larger = part.absolute is not None and found.absolute is not None and part.absolute > found.absolute
        found = Difference(
            found.elements + part.elements,
            found.total,
            found.one_nan + part.one_nan,
            _larger(found.absolute, part.absolute),
            _larger(found.relative, part.relative),
            _index(begin + part.at, first.shape) if is_first or is_larger else found.where,
        )
        begin += one.numel()
    return found


def _index(at: int, shape: torch.Size) -> tuple[int, ...]:
    """The index of the element that is the ``at``-th in the order of the rows."""
    found = []
    for length in reversed(shape):
        at, place = divmod(at, length)
        found.append(place)
    return tuple(reversed(found))


def _parts(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of at most ``PART`` elements, in the order of the rows. No expanded tensor is whole in memory."""
    if one.numel() <= PART:
        yield one, other
        return
    row = one.numel() // one.shape[0]
    if row <= PART:
        yield from zip(one.split(PART // row), other.split(PART // row), strict=True)
        return
    for index in range(one.shape[0]):
        yield from _parts(one[index], other[index])


def _larger(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else max(one, other)


def _first(unequal: torch.Tensor) -> int:
    return int(unequal.reshape(-1).to(torch.uint8).argmax()) if unequal.numel() else 0


def _compare(one: torch.Tensor, other: torch.Tensor, atol: float, rtol: float) -> _Part:
    try:
        a, b = _wide(one), _wide(other)
    except (RuntimeError, NotImplementedError):
        size = one.element_size()
        a, b = (part.reshape(-1).view(torch.uint8).view(-1, size) for part in (one, other))
        unequal = (a != b).any(1)
        return _Part(int(unequal.sum()), 0, None, None, _first(unequal))
    is_inexact = one.dtype.is_floating_point or one.dtype.is_complex
    if is_inexact:
        nans = a.isnan(), b.isnan()
        unequal = (a != b) & ~(nans[0] & nans[1])
        one_nan = nans[0] ^ nans[1]
    else:  # 64-bit integers have more digits than float64
        bits = _UNSIGNED.get(one.dtype, one.dtype)
        unequal, one_nan = one.view(bits) != other.view(bits), torch.zeros(one.shape, dtype=torch.bool)
    distance = (a - b).abs()
    if not is_inexact:
        distance = distance.clamp(min=1.0)  # float64 may have rounded both to one number
    if atol or rtol:
        unequal &= one_nan | distance.isinf() | (distance > atol + rtol * b.abs())
    elements = int(unequal.sum())
    numbers = unequal & ~one_nan
    absolute = distance[numbers]
    if not absolute.numel():
        return _Part(elements, int(one_nan.sum()), 0.0, 0.0, _first(unequal))
    relative = (absolute / torch.maximum(a.abs(), b.abs())[numbers]).nan_to_num(nan=1.0)  # infinity over infinity
    at = int(torch.where(numbers, distance, -1.0).reshape(-1).argmax())
    return _Part(elements, int(one_nan.sum()), float(absolute.max()), float(relative.max()), at)


def _wide(part: torch.Tensor) -> torch.Tensor:
    """The numbers in 64 bits for each real number."""
    return part.to(torch.complex128 if part.dtype.is_complex else torch.float64)
