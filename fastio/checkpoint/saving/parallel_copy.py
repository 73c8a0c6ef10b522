"""Copies host memory with several threads, and computes the CRC-32s of the copies; training pauses meanwhile.

A copy costs the same without them: memory is slower than the processor.

The GIL is released during a copy. The threads live only during one call, so a fork finds none.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from fastio import processors
from fastio._native import Control, Digests, JoinOnExit, crc32_at, crc32_combine
from fastio._native import CopyBatch as NativeBatch
from fastio.formats.block_checksums import LEAST, block_bytes
from fastio.runtime.interrupt_safe_thread import NoThreadError, WorkThread

# Small copies keep the GIL: releasing it costs more than the copy when other threads take it.
_small_compare = ctypes.PyDLL(None).memcmp
_small_compare.argtypes, _small_compare.restype = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t), ctypes.c_int
_small_move = ctypes.PyDLL(None).memmove
_small_move.argtypes, _small_move.restype = _small_compare.argtypes, ctypes.c_void_p
_SMALL = 64 << 10
# What one thread copies at a time: small enough that all threads end together. A multiple of the digests' block.
_CHUNK = 32 << 20
# This many threads saturate memory, even if there are more processors.
_MOST_THREADS = 8


class Copy(NamedTuple):
    """Copies ``nbytes`` from ``source`` to ``target``, both addresses; ``number`` is the caller's id for it.

    ``block`` is the number of its first block in the digests; it has :func:`blocks_of` its bytes. With ``compare`` it
    is made only if the source changed since it was copied last: small ones are compared with their target byte by byte,
    others by their digests.
    """

    number: int
    target: int
    source: int
    nbytes: int
    block: int = 0
    compare: bool = False


def blocks_of(nbytes: int) -> int:
    """Return the number of digests' blocks of ``nbytes``."""
    return -(-nbytes // Digests.BLOCK)


def split_by_first_block(copies: Iterable[Copy], digests: Digests) -> tuple[list[Copy], list[Copy]]:
    """Return the copies whose source differs in its first block, with all small ones; and those still to be compared.

    Most sources that changed differ where they begin.
    """
    first: list[Copy] = []
    rest: list[Copy] = []
    for copy in copies:
        if copy.nbytes < _SMALL:
            first.append(copy)
        elif digests.differs(copy.block, copy.source, copy.nbytes):
            first.append(copy._replace(compare=False))
        else:
            rest.append(copy)
    return first, rest


def copy_all(copies: Iterable[Copy], digests: Digests) -> dict[int, int | None]:
    """Make every copy, except with ``compare`` those whose source did not change.

    Returns the CRC-32 of each one made, by its number; None for large ones with ``compare``, of which parts were
    copied.
    """
    chunks: list[Copy] = []
    small: list[Copy] = []
    for copy in copies:
        if copy.nbytes < _SMALL:
            small.append(copy)
        else:
            chunks.extend(_chunks(copy))
    made = _copy_small(small)
    work = _Work(chunks, digests)
    _share(work.run, work.control, sum(chunk.nbytes for chunk in chunks))
    if work.error is not None:
        raise work.error
    for chunk in chunks:
        if chunk in work.crcs:
            crc, before = work.crcs[chunk], made.get(chunk.number, 0)
            made[chunk.number] = None if crc is None or before is None else crc32_combine(before, crc, chunk.nbytes)
    return made


class CopyBatch:
    """Copies that are made as often as :meth:`run` is called; their ``compare`` is ignored.

    ``crcs``: the CRC-32 of each copy of the last call, by its number; ``block_crcs``: those of the blocks
    (:mod:`fastio.formats.block_checksums`) of those with several.
    """

    def __init__(self, copies: Sequence[Copy]) -> None:
        rows = [(copy.target, copy.source, copy.nbytes, block_bytes(copy.nbytes)) for copy in copies]
        self._batch = NativeBatch(rows)
        self._numbers = [copy.number for copy in copies]
        self._large = [(index, copy.number) for index, copy in enumerate(copies) if copy.nbytes > LEAST]
        self.crcs: dict[int, int] = {}
        self.block_crcs: dict[int, bytes] = {}

    def run(self) -> None:
        """Make all copies."""
        batch, control = self._batch, Control()
        batch.begin()

        def work() -> None:
            while batch.run(control, _CHUNK):
                pass

        _share(work, control, batch.nbytes)
        self.crcs = dict(zip(self._numbers, batch.crcs(), strict=True))
        self.block_crcs = {number: batch.block_crcs(index) for index, number in self._large}


def _share(work: Callable[[], None], control: Control, nbytes: int) -> None:
    """Call ``work`` in as many threads as copies of ``nbytes`` are worth, this one included."""
    threads = min(processors.count(), _MOST_THREADS, -(-nbytes // _CHUNK))

    def begin(within: JoinOnExit) -> None:
        for _ in range(threads - 1):
            with contextlib.suppress(NoThreadError):
                WorkThread(work).start(within)

    with JoinOnExit(control, begin):  # even if interrupted: the threads write to the caller's addresses
        work()


class _Work:
    """Chunks that threads share; each thread calls ``run``, which begins no chunk once ``control`` is cancelled.

    ``crcs`` has the CRC-32 of each chunk that was copied, None if it is unknown. ``error`` is the error of a thread.
    """

    def __init__(self, chunks: Iterable[Copy], digests: Digests) -> None:
        self._left = iter(chunks)  # next() on it is atomic under the GIL
        self._digests = digests
        self.crcs: dict[Copy, int | None] = {}
        self.control = Control()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._run()
        except Exception as error:  # raised when all have ended
            self.error = error

    def _run(self) -> None:
        while not self.control.cancelled and (chunk := next(self._left, None)) is not None:
            _, target, source, nbytes, block, compare = chunk
            if not compare:
                self.crcs[chunk] = self._digests.copy(block, target, source, nbytes)
            elif self._digests.update(block, target, source, nbytes):
                self.crcs[chunk] = None


def _copy_small(copies: Iterable[Copy]) -> dict[int, int | None]:
    made: dict[int, int | None] = {}
    for number, target, source, nbytes, _, compare in copies:
        if not compare or _small_compare(target, source, nbytes) != 0:
            _small_move(target, source, nbytes)
            made[number] = crc32_at(target, nbytes)
    return made


def _chunks(copy: Copy) -> Iterator[Copy]:
    for offset in range(0, copy.nbytes, _CHUNK):
        nbytes = min(_CHUNK, copy.nbytes - offset)
        target, source, block = copy.target + offset, copy.source + offset, copy.block + blocks_of(offset)
        yield Copy(copy.number, target, source, nbytes, block, copy.compare)
