"""Parses sizes and counts given by callers, and formats sizes for messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("iB", 1024), ("B", 1000))
}


def parse_size(size: Any, name: str = "") -> int | None:
    """Return the bytes of 8, "8GiB", "1.5 GB" or None. Raises ValueError, with ``name``, for anything else."""
    if size is None:
        return None
    said = f"{name}={size!r}" if name else repr(size)
    if isinstance(size, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", size.strip())
        if match is None or match[2] not in _UNITS or ("." in match[1] and _UNITS[match[2]] == 1):
            units = ", ".join(filter(None, _UNITS))
            raise ValueError(f"{said} is no size: expected bytes, or a number and one of {units}")
        return int(float(match[1]) * _UNITS[match[2]])
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{said} is no size: expected 0 or more bytes, or a text such as '8GiB'")
    return size


def check_count(name: str, count: object, expected: str) -> None:
    """Raise ValueError for an argument that is neither None nor an integer of at least 1."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ValueError(f"{name}={count!r}: expected {expected}")


def format_size(nbytes: float) -> str:
    """Return a size of so many bytes in words: ``"12.3 MiB"``."""
    return _in_units(nbytes, 1024, 1024, ("B", "KiB", "MiB", "GiB"))


def _in_units(number: float, base: int, most: float, units: Sequence[str]) -> str:
    """Return a size in the first unit of which there are fewer than ``most``, or in the last one."""
    for unit in units[:-1]:
        if number < most:
            return f"{_three_digits(number)} {unit}"
        number /= base
    return f"{_three_digits(number)} {units[-1]}"


def exact_size(nbytes: int) -> str:
    """Return a size for messages: ``"1.5 GiB (1,610,612,736 bytes)"``; below 1 KiB only the bytes."""
    exact = count_of(nbytes, "byte")
    return exact if nbytes < 1024 else f"{format_size(nbytes)} ({exact})"


def both_units(nbytes: int) -> str:
    """Return a size in both kinds of units, for sizes that users give: ``"954 MiB (1 GB)"``."""
    found = format_size(nbytes)
    return found if nbytes < 1000 else f"{found} ({_in_units(nbytes, 1000, 999.5, ('B', 'KB', 'MB', 'GB'))})"


def count_of(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: ``"1 tensor"``, ``"1,000 tensors"``; ``plural`` where that has no "s"."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def _three_digits(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
