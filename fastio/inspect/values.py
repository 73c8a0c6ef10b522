"""Compares the values of two tensors of one shape and dtype, a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

PART = 1 << 20  # elements that are converted to 64 bits at a time
_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


class Difference(NamedTuple):
    """``elements`` of ``total`` differ. Two NaN are equal, a NaN and a number differ: those are ``one_nan``.

    ``absolute`` is the largest |a - b|, ``relative`` the largest |a - b| / max(|a|, |b|), each over numbers, computed
    in 64 bits. They are None for a dtype without arithmetic, whose bytes were compared.
    """

    elements: int
    total: int
    one_nan: int
    absolute: float | None
    relative: float | None


def compare(first: torch.Tensor, second: torch.Tensor) -> Difference:
    """Compare two tensors of one shape and dtype."""
    found = Difference(0, first.numel(), 0, 0.0, 0.0)
    for one, other in _parts(first.squeeze(), second.squeeze()):
        part = _compare(one.contiguous(), other.contiguous())
        found = Difference(
            found.elements + part.elements,
            found.total,
            found.one_nan + part.one_nan,
            _larger(found.absolute, part.absolute),
            _larger(found.relative, part.relative),
        )
    return found


def _parts(one: torch.Tensor, other: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield pairs of at most ``PART`` elements. Expanded tensors are never whole in memory."""
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


def _compare(one: torch.Tensor, other: torch.Tensor) -> Difference:
    try:
        a, b = _wide(one), _wide(other)
    except (RuntimeError, NotImplementedError):
        size = one.element_size()
        a, b = (part.reshape(-1).view(torch.uint8).view(-1, size) for part in (one, other))
        unequal = (a != b).any(1)
        return Difference(int(unequal.sum()), one.numel(), 0, None, None)
    if one.dtype.is_floating_point or one.dtype.is_complex:
        nans = a.isnan(), b.isnan()
        unequal = (a != b) & ~(nans[0] & nans[1])
        one_nan = nans[0] ^ nans[1]
    else:  # 64-bit integers have more digits than float64
        bits = _UNSIGNED.get(one.dtype, one.dtype)
        unequal, one_nan = one.view(bits) != other.view(bits), torch.zeros((), dtype=torch.bool)
    elements = int(unequal.sum())
    numbers = unequal & ~one_nan
    absolute = (a - b).abs()[numbers]
    if not absolute.numel():
        return Difference(elements, one.numel(), int(one_nan.sum()), 0.0, 0.0)
    if not (one.dtype.is_floating_point or one.dtype.is_complex):
        absolute = absolute.clamp(min=1.0)  # float64 may have rounded both to one number
    relative = (absolute / torch.maximum(a.abs(), b.abs())[numbers]).nan_to_num(nan=1.0)  # infinity over infinity
    return Difference(elements, one.numel(), int(one_nan.sum()), float(absolute.max()), float(relative.max()))


def _wide(part: torch.Tensor) -> torch.Tensor:
    """The numbers in 64 bits for each real number."""
    return part.to(torch.complex128 if part.dtype.is_complex else torch.float64)
