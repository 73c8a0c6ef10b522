"""Copies tensors into new files in chunks: one is read while the one before it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch

from fastio._native import Control, Mapping, crc32_at
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import TransferError, quoted
from fastio.files.atomic_file import AtomicFile
from fastio.files.free_space import free_space_named
from fastio.memory.raw_memory import view
from fastio.models.conversion.new_file import NewFile, Piece
from fastio.models.conversion.source_tensors import SourceFile
from fastio.results import SaveResult, Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.sizes import count_of
from fastio.transports.transport import SAVE, Extent, WriteRequest

# Two chunks are in memory. A multiple of the transports' block sizes: no block spans two chunks.
CHUNK = 32 << 20
_PAGE = 4096


class _Writing:
    """A new file that is being written, under a temporary name."""

    def __init__(self, file: NewFile, stack: ExitStack, policy: Any) -> None:
        self._started = time.perf_counter()
        self.file = file
        self._plan = plan_transfer(
            SAVE,
            file.path,
            file.format,
            {torch.device("cpu")},
            file.nbytes,
            file.count,
            policy,
            "extents",
            durable=True,
        )
        self._tools: tuple[str, ...] = ()
        self._last: Transfer | None = None
        self._notes: dict[str, None] = {}
        self.new = stack.enter_context(AtomicFile(file.path))
        with free_space_named(file.path, file.size):
            try:
                self.new.allocate(file.size)
            except TransferError as error:
                what = f"reserving disk space for {count_of(file.count, 'tensor')}"
                raise TransferError(error.errno or 0, what, file.path) from error

    def write(self, chunk: _Chunk, control: Control) -> None:
        """Write a chunk. TransferError names the tensor at which it failed."""
        extent = Extent(chunk.begin, chunk.end - chunk.begin, chunk.address, False)
        request = WriteRequest(self.file.path, self.new.fd, self.file.size, [extent], control=control)

        def work(execution: Execution) -> Outcome[tuple[str, ...]]:
            # The time includes that of the reads, so no dictionary learns it.
            return Outcome(execution.move(request), execution.left, counts=False)

        try:
            # The tool that the dictionary chose for the first chunk writes all, until it cannot.
            self._last, self._tools = execute(self._plan, work, self._started, control, self._tools)
        except TransferError as error:
            name = self.file.tensor_at(chunk.begin if error.offset is None else error.offset)
            what = f"{error.operation} of {f'the tensor {quoted(name)}' if name else 'the header'}"
            raise TransferError(error.errno or 0, what, self.file.path, error.offset) from error
        self._notes.update(dict.fromkeys(self._last.fallbacks))

    def result(self) -> SaveResult:
        """How the file was written, of which at least a chunk was."""
        seconds, last = time.perf_counter() - self._started, cast(SaveResult, self._last)
        return replace(last, seconds=seconds, verified=self.file.is_verified, fallbacks=tuple(self._notes))


class _Chunk(NamedTuple):
    """The bytes of a new file from ``begin`` to ``end``, at ``address``. ``pieces`` are read from the source."""

    writing: _Writing
    begin: int
    end: int
    address: int
    pieces: list[Piece]
    reads: list[_Read]


class _Read(NamedTuple):
    """Extents of a file of the source, sorted and apart, with the indices of the pieces that they are."""

    file: SourceFile
    extents: list[Extent]
    indices: list[int]


def copy_all(
    files: Sequence[NewFile], stack: ExitStack, policy: Any, progress: Progress | None
) -> tuple[list[AtomicFile], list[SaveResult]]:
    """Write files, each under a temporary name until it is committed, or ``stack`` ends; they take their space first.

    Every run of bytes is compared with its checksum; the caller must compare the source files' times afterwards.
    """
    writes = Control()
    writes.still = True  # the memory does not change while it is written
    writings = [_Writing(file, stack, policy) for file in files]
    room = min(CHUNK, -(-max(file.size for file in files) // _PAGE) * _PAGE)
    with translate_native_errors(files[0].path):
        memory = Mapping(2 * room, used=True)
    packing, reads = _Packing(), Control()
    total, done = sum(file.size for file in files), 0
    chunks = _chunks(writings, memory.address, room)
    chunk, following, crcs = None, next(chunks, None), []
    while chunk is not None or following is not None:
        with under_way(partial(_read, following, packing, reads), reads, _nbytes(following)) as reading:
            if chunk is not None:
                chunk.writing.file.take(chunk.pieces, crcs)
                chunk.writing.file.fill_literals(chunk.begin, chunk.end, chunk.address)
            with under_way(partial(_write, chunk, writes), writes, _nbytes(chunk)) as writing:
                ahead = next(chunks, None)
                crcs = reading.wait()
                writing.wait()
        done += _nbytes(chunk)
        if progress is not None and chunk is not None:
            progress(done, total)
        chunk, following = following, ahead
    for one in writings:
        one.file.finish(one.new)
    return [one.new for one in writings], [one.result() for one in writings]


def _nbytes(chunk: _Chunk | None) -> int:
    return 0 if chunk is None else chunk.end - chunk.begin


def _chunks(writings: Sequence[_Writing], address: int, room: int) -> Iterator[_Chunk]:
    """The chunks of all files, in two places by turns."""
    number = 0
    for writing in writings:
        for begin in range(0, writing.file.size, CHUNK):
            end, at = min(begin + CHUNK, writing.file.size), address + number % 2 * room
            pieces = writing.file.pieces(begin, end, at)
            yield _Chunk(writing, begin, end, at, pieces, list(_reads(pieces)))
            number += 1


def _reads(pieces: Sequence[Piece]) -> Iterator[_Read]:
    """What is read from each file: tensors that overlap in it are read one after the other."""
    by_file: dict[SourceFile, list[tuple[int, int]]] = {}
    for index, piece in enumerate(pieces):
        if piece.part.run is not None:
            by_file.setdefault(piece.part.run.file, []).append((piece.part.run.offset + piece.start, index))
    for file, left in by_file.items():
        left.sort()
        while left:
            read, rest, end = _Read(file, [], []), [], 0
            for offset, index in left:
                if offset >= end:
                    piece = pieces[index]
                    name = piece.part.tensor.name
                    read.extents.append(Extent(offset, piece.nbytes, piece.address, True, "cpu", None, name))
                    read.indices.append(index)
                    end = offset + piece.nbytes
                else:
                    rest.append((offset, index))
            yield read
            left = rest


def _write(chunk: _Chunk | None, control: Control) -> None:
    if chunk is not None:
        chunk.writing.write(chunk, control)


def _read(chunk: _Chunk | None, packing: _Packing, control: Control) -> list[int]:
    """Fill the memory of a chunk's pieces; return a CRC-32 for each."""
    if chunk is None:
        return []
    crcs = [0] * len(chunk.pieces)
    for read in chunk.reads:
        for index, value in zip(read.indices, read.file.read(read.extents, control), strict=True):
            crcs[index] = value
    for index, piece in enumerate(chunk.pieces):
        if piece.part.run is None:
            crcs[index] = packing.take(piece)
    return crcs


class _Packing:
    """The elements of the tensor that was begun last, row by row, as bytes."""

    def __init__(self) -> None:
        self._chunks: Iterator[torch.Tensor] = iter(())
        self._rest = memoryview(b"")

    def take(self, piece: Piece) -> int:
        """Copy a piece, which follows the one before it, to its address; return its CRC-32."""
        if not piece.start:
            assert piece.part.tensor.packed is not None
            self._chunks = piece.part.tensor.packed()
        target = view(piece.address, piece.nbytes)
        while target:
            if not self._rest:
                chunk = next(self._chunks)
                self._rest = view(chunk.data_ptr(), chunk.nbytes)
            count = min(len(target), len(self._rest))
            target[:count] = self._rest[:count]
            target, self._rest = target[count:], self._rest[count:]
        return crc32_at(piece.address, piece.nbytes)
