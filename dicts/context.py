"""The key of a dictionary: what is moved, in which circumstances, and the bucket its size falls in."""

from __future__ import annotations

import math
from typing import NamedTuple

from fastio._native import BUCKETS, BUCKETS_PER_OCTAVE, FIRST_OCTAVE, bucket_nbytes, shape

LAST_BUCKET = BUCKETS - 1
SHAPE = tuple(shape(bucket_nbytes(bucket)) for bucket in range(BUCKETS))
"""Of each bucket: what the logarithm of any tool's time grows with (latency + size / bandwidth)."""
FEW_EXTENTS = 8

_KIB = 1024


class Context(NamedTuple):
    """The circumstances of a transfer: all of the key but its size. The paper keys on the size alone (section 4)."""

    op: str
    """``"save"`` or ``"load"``."""
    format: str
    """``"pt"``, ``"safetensors"``, ``"npy"`` or what a plug-in names its own."""
    device: str
    """``"cpu"`` or ``"cuda"``."""
    durable: bool | None = None
    """Saves: whether the time includes the fsync. None for loads."""
    resident: bool | None = None
    """Loads: whether the page cache held the file. None for saves."""
    small: int = 0
    """The class of the mean extent's size, from :func:`small_class`."""


class Choice(NamedTuple):
    """Which tool to use now.

    ``order`` holds every candidate, ``tool`` first and the others best first: what to try when a tool refuses.
    ``exploring`` is True when the tool is tried to learn its time, not because it is believed to be the fastest.
    """

    tool: str
    reason: str
    exploring: bool
    order: tuple[str, ...]


def small_class(nbytes: int, extents: int) -> int:
    """The class of the mean extent's size: 0 for at least 1 MiB or a few extents, 1 from 64 KiB, 2 from 4 KiB, 3 below.

    With a few extents the total size says everything already, so they share one class and what is learned in it.
    """
    if extents <= FEW_EXTENTS:
        return 0
    mean = nbytes / extents
    return 0 if mean >= 1024 * _KIB else 1 if mean >= 64 * _KIB else 2 if mean >= 4 * _KIB else 3


def bucket_of(nbytes: int) -> int:
    """The quarter octave that a size in bytes falls in. Sizes below 304 share the first bucket, vast ones the last."""
    if nbytes < 1 << FIRST_OCTAVE:
        return 0
    return min(int(BUCKETS_PER_OCTAVE * (math.log2(nbytes) - FIRST_OCTAVE)), LAST_BUCKET)


def describe_nbytes(nbytes: float) -> str:
    """A size for people: ``"12.3 MiB"``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < _KIB or unit == "GiB":
            break
        nbytes /= _KIB
    return f"{nbytes:.3g} {unit}" if nbytes < 1000 else f"{nbytes:.0f} {unit}"


def describe_seconds(seconds: float) -> str:
    """A duration for people: ``"12.3 ms"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
