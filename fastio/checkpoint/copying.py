"""Copies of host memory by several threads at once: the time for which a training stands still.

``ctypes`` releases the GIL for the time of a copy. The threads live as long as one call, so a fork meets none.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_compare.restype = ctypes.c_int

# For small ones: letting go of the GIL costs more than the copy, as often as other threads want it.
_small_compare = ctypes.PyDLL(None).memcmp
_small_compare.argtypes, _small_compare.restype = _compare.argtypes, _compare.restype
_small_move = ctypes.PyDLL(None).memmove
_small_move.argtypes, _small_move.restype = _compare.argtypes, ctypes.c_void_p
_SMALL = 64 << 10
# What one thread takes at a time: small enough for all to end together, large enough for the C library's way of
# copying around the processor's caches.
_PIECE = 32 << 20
# Memory is busy with fewer threads than there may be processors.
_MOST_THREADS = 8


class Copy(NamedTuple):
    """``nbytes`` from ``source`` to ``target``, both addresses; ``number`` is the caller's name for it."""

    number: int
    target: int
    source: int
    nbytes: int


def copy_all(copies: Iterable[Copy], compare: bool) -> set[int]:
    """Make every copy; with ``compare``, only those whose target differs. Gives the numbers of those that were made."""
    small: list[Copy] = []
    pieces: list[Copy] = []
    for copy in copies:
        if copy.nbytes < _SMALL:
            small.append(copy)
        else:
            pieces.extend(_pieces(copy))
    nbytes = sum(piece.nbytes for piece in pieces)
    wanted = min(len(os.sched_getaffinity(0)), _MOST_THREADS, -(-nbytes // _PIECE))
    made: set[int] = set()
    shared = iter(pieces)  # the GIL makes taking from it one step
    threads = [threading.Thread(target=_work, args=(shared, compare, made), daemon=True) for _ in range(wanted - 1)]
    for thread in threads:
        thread.start()
    try:
        _work(iter(small), compare, made, _small_compare, _small_move)
        _work(shared, compare, made)
    finally:
        for thread in threads:
            thread.join()
    return made


def _work(
    pieces: Iterator[Copy], compare: bool, made: set[int], differ: Any = _compare, move: Any = ctypes.memmove
) -> None:
    for number, target, source, nbytes in pieces:
        if not compare or differ(target, source, nbytes) != 0:
            move(target, source, nbytes)
            made.add(number)


def _pieces(copy: Copy) -> Iterator[Copy]:
    for at in range(0, copy.nbytes, _PIECE):
        yield Copy(copy.number, copy.target + at, copy.source + at, min(_PIECE, copy.nbytes - at))
