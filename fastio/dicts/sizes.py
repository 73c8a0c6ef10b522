"""The size classes of a dictionary, and durations in words."""

from __future__ import annotations

import math

BUCKETS_PER_OCTAVE = 4
FIRST_OCTAVE, LAST_OCTAVE = 8, 50
BUCKETS = (LAST_OCTAVE - FIRST_OCTAVE) * BUCKETS_PER_OCTAVE
_LATENCY_NBYTES = 1 << 20  # a typical disk's latency times its bandwidth


def bucket_of(nbytes: float) -> int:
    """The quarter octave that a size in bytes is in. Sizes below 304 share the first bucket, from 2^50 on the last."""
    if not nbytes >= 1 << FIRST_OCTAVE:
        return 0
    return int(min(BUCKETS_PER_OCTAVE * (math.log2(nbytes) - FIRST_OCTAVE), BUCKETS - 1))


def bucket_nbytes(bucket: int) -> int:
    """The size in bytes that stands for a bucket: its geometric middle."""
    nbytes: float = 2.0 ** (FIRST_OCTAVE + (bucket + 0.5) / BUCKETS_PER_OCTAVE)
    return round(nbytes)


def shape(nbytes: float) -> float:
    """How log(seconds) of any tool grows with the size: log(latency + size / bandwidth), up to a constant."""
    return math.log(max(nbytes, 0.0) + _LATENCY_NBYTES)


SHAPES = tuple(shape(bucket_nbytes(bucket)) for bucket in range(BUCKETS))
"""The shape at each bucket's own size."""


def describe_seconds(seconds: float) -> str:
    """A duration in words: ``"12.3 ms"``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.3g} us"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
