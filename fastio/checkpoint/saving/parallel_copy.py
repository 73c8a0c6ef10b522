"""Copies of host memory by several threads at once: the time for which a training stands still.

The GIL is released for the time of a copy. The threads live as long as one call, so a fork meets none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fastio._native import Control, Digests, JoinOnExit
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread

# For small ones: letting go of the GIL costs more than the copy, as often as other threads want it.
_small_compare = ctypes.PyDLL(None).memcmp
_small_compare.argtypes, _small_compare.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
_small_move = ctypes.PyDLL(None).memmove
_small_move.argtypes, _small_move.restype = _small_compare.argtypes, ctypes.c_void_p
_SMALL = 64 << 10
# What one thread takes at a time: small enough for all to end together, large enough for the C library's way of
# copying around the processor's caches. It is made of whole blocks of digests.
_PIECE = 32 << 20
# Memory is busy with fewer threads than there may be processors.
_MOST_THREADS = 8


class Copy(NamedTuple):
    """``nbytes`` from ``source`` to ``target``, both addresses; ``number`` is the caller's name for it.

    ``block`` is the number of its first block in the digests: there are :func:`blocks_of` its bytes. With ``compare``
    it is made only if the source is not as it was when it was copied last: small ones are compared with their target,
    byte by byte, others by their digests.
    """

    number: int
    target: int
    source: int
    nbytes: int
    block: int = 0
    compare: bool = False


def blocks_of(nbytes: int) -> int:
    """How many blocks of digests so many bytes take."""
    return -(-nbytes // Digests.BLOCK)


def by_first_look(copies: Iterable[Copy], digests: Digests) -> tuple[list[Copy], list[Copy]]:
    """Those to be made, as far as a first look tells, with all small ones; and those that are to be compared yet.

    Most sources that changed differ from their last copy where they begin.
    """
    near: list[Copy] = []
    far: list[Copy] = []
    for copy in copies:
        if copy.nbytes < _SMALL:
            near.append(copy)
        elif digests.differs(copy.block, copy.source, copy.nbytes):
            near.append(copy._replace(compare=False))
        else:
            far.append(copy)
    return near, far


def copy_all(copies: Iterable[Copy], digests: Digests | None = None) -> set[int]:
    """Make every copy, but those that need not be; gives the numbers of those that were made."""
    pieces: list[Copy] = []
    small: list[Copy] = []
    for copy in copies:
        if copy.nbytes < _SMALL:
            small.append(copy)
        else:
            pieces.extend(_pieces(copy))
    made: set[int] = set()
    _copy_small(small, made)
    nbytes = sum(piece.nbytes for piece in pieces)
    wanted = min(len(os.sched_getaffinity(0)), _MOST_THREADS, -(-nbytes // _PIECE))
    work = _Work(pieces, digests, made)

    def begin(within: JoinOnExit) -> None:
        for _ in range(wanted - 1):
            with contextlib.suppress(NoThreadError):
                WorkThread(work.run).start(within)

    with JoinOnExit(work.control, begin):  # whoever is interrupted: their addresses are the caller's
        work.run()
    if work.error is not None:
        raise work.error
    return made


class _Work:
    """Pieces that threads share; each calls ``run``, which begins none once ``control`` is cancelled.

    ``error`` is what stopped one of them.
    """

    def __init__(self, pieces: Iterable[Copy], digests: Digests | None, made: set[int]) -> None:
        self._left = iter(pieces)  # the GIL makes taking from it one step
        self._digests, self._made = digests, made
        self.control = Control()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # raised when all have ended
            self.error = error

    def _run(self) -> None:
        while not self.control.cancelled and (piece := next(self._left, None)) is not None:  # what is taken is copied
            number, target, source, nbytes, block, compare = piece
            if self._digests is None:
                ctypes.memmove(target, source, nbytes)
                self._made.add(number)
            elif self._digests.copy(block, target, source, nbytes, compare):
                self._made.add(number)


def _copy_small(copies: Iterable[Copy], made: set[int]) -> None:
    for number, target, source, nbytes, _, compare in copies:
        if not compare or _small_compare(target, source, nbytes) != 0:
            _small_move(target, source, nbytes)
            made.add(number)


def _pieces(copy: Copy) -> Iterator[Copy]:
    for at in range(0, copy.nbytes, _PIECE):
        nbytes = min(_PIECE, copy.nbytes - at)
        yield Copy(copy.number, copy.target + at, copy.source + at, nbytes, copy.block + blocks_of(at), copy.compare)
