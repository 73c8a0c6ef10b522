"""Copies tensors into new files in chunks: one is read while the one before it is written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain
from typing import Any, cast

from fastio._native import Control, Mapping
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.save_plan import plan_layout
from fastio.errors import TransferError, quoted
from fastio.files.atomic_file import AtomicFile
from fastio.models.conversion.new_file import Chunk, NewFile
from fastio.models.conversion.tensor_reads import TensorReads
from fastio.results import SaveResult, Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.sizes import format_size
from fastio.transports.transport import Extent, WriteRequest

# Two chunks are in memory. A multiple of the transports' block sizes: no block spans two chunks.
CHUNK = 32 << 20
_PAGE = 4096


class _Writing:
    """A new file that is being written, under a temporary name."""

    def __init__(self, file: NewFile, stack: ExitStack, policy: Any) -> None:
        layout, self._started = file.layout, time.perf_counter()
        self.file = file
        self._control = Control()
        self._control.still = True
        self._plan = plan_layout(layout, file.path, file.format, policy, durable=True)
        self._tools: tuple[str, ...] = ()
        self._last: Transfer | None = None
        self._notes: dict[str, None] = {}
        self.new = stack.enter_context(AtomicFile(file.path))
        try:
            self.new.allocate(layout.size)
        except TransferError as error:
            what = f"reserving {format_size(layout.size)} of disk space for {file.count} tensors"
            raise TransferError(error.errno or 0, what, file.path) from error

    def write(self, extents: Sequence[Extent]) -> None:
        """Write a chunk. TransferError names the tensor at which it failed."""
        request = WriteRequest(self.file.path, self.new.fd, self.file.layout.size, extents, control=self._control)

        def work(execution: Execution) -> Outcome[tuple[str, ...]]:
            # The time includes that of the reads, so no dictionary learns it.
            return Outcome(execution.move(request), execution.left, counts=False)

        try:
            # The tool that the dictionary chose for the first chunk writes all, until it cannot.
            self._last, self._tools = execute(self._plan, work, self._started, self._control, self._tools)
        except TransferError as error:
            at = extents[0].offset if error.offset is None else error.offset
            name = self.file.tensor_at(at)
            what = f"{error.operation} of {f'the tensor {quoted(name)}' if name else 'the header'}"
            raise TransferError(error.errno or 0, what, self.file.path, error.offset) from error
        self._notes.update(dict.fromkeys(self._last.fallbacks))

    def job(self, extents: Sequence[Extent]) -> Any:
        """The write of a chunk, on a thread, as a context."""
        nbytes = sum(extent.nbytes for extent in extents)
        return under_way(lambda: self.write(extents), self._control, nbytes)

    def result(self) -> SaveResult:
        """How the file was written, of which at least a chunk was."""
        seconds, layout = time.perf_counter() - self._started, self.file.layout
        verified = bool(layout.patches or layout.digests)
        return replace(cast(SaveResult, self._last), seconds=seconds, verified=verified, fallbacks=tuple(self._notes))


def copy_all(
    files: Sequence[NewFile], stack: ExitStack, policy: Any, progress: Progress | None
) -> tuple[list[AtomicFile], list[SaveResult]]:
    """Write files, each under a temporary name until it is committed, or ``stack`` ends; they take their space first.

    Every run of bytes is compared with its checksum; the caller must compare the source files' times afterwards.
    """
    writings = [_Writing(file, stack, policy) for file in files]
    room = min(CHUNK, -(-max(file.layout.size for file in files) // _PAGE) * _PAGE)
    with translate_native_errors(files[0].path):
        memory = Mapping(2 * room, used=True)
    addresses = (memory.address, memory.address + room)
    reads = TensorReads()
    total, done = sum(file.layout.size for file in files), 0
    steps = _steps(writings)
    writing, chunk = next(steps)
    extents = _read(writing.file, chunk, addresses[0], reads)
    for number, following in enumerate(chain(steps, [None])):
        with writing.job(extents) as job:
            ahead = None if following is None else _read(following[0].file, following[1], addresses[~number % 2], reads)
            job.wait()
        done += chunk.end - chunk.begin
        if progress is not None:
            progress(done, total)
        if following is not None and ahead is not None:
            (writing, chunk), extents = following, ahead
    for one in writings:
        one.file.finish(one.new)
    return [one.new for one in writings], [one.result() for one in writings]


def _steps(writings: Sequence[_Writing]) -> Iterator[tuple[_Writing, Chunk]]:
    for writing in writings:
        for chunk in writing.file.chunks(CHUNK):
            yield writing, chunk


def _read(file: NewFile, chunk: Chunk, address: int, reads: TensorReads) -> list[Extent]:
    """Read a chunk to an address; return what is to be written."""
    pieces = file.pieces(chunk, address)
    return file.extents(chunk, pieces, reads.read(list(pieces.values())))
