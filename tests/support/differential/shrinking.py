"""Shrinks an object that differs: removes parts of its outermost container while it still differs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

_MOST_SECONDS = 20


def shrink(make: Callable[[], Any], differs: Callable[[Any], bool]) -> Any:
    """The smallest object found. ``make`` makes a new whole object, ``differs`` tests one."""
    end = time.monotonic() + _MOST_SECONDS
    kept = list(range(_size(make())))
    step = max(1, len(kept) // 2)
    while step:
        at = 0
        while at < len(kept) and time.monotonic() < end:
            fewer = kept[:at] + kept[at + step :]
            if differs(_only(make(), fewer)):
                kept = fewer
            else:
                at += step
        step //= 2
    return _only(make(), kept)


def _outermost(obj: Any) -> Any:
    """The container with most of the parts."""
    if type(obj) is dict and type(obj.get("model")) is dict:
        return obj["model"]
    return obj if isinstance(obj, (dict, list)) else []


def _size(obj: Any) -> int:
    return len(_outermost(obj))


def _only(obj: Any, kept: list[int]) -> Any:
    container = _outermost(obj)
    chosen = set(kept)
    if isinstance(container, dict):
        for number, key in enumerate(list(container)):
            if number not in chosen:
                del container[key]
    else:
        container[:] = [part for number, part in enumerate(container) if number in chosen]
    return obj
