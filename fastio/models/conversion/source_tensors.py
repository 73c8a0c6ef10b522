"""What a conversion reads: tensors as runs of bytes in open files, and their checksums."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fastio._native import Control, Mapping
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.extent_reads import fill, plan_read
from fastio.engine.plan import TransferPlan
from fastio.files.unchanged import Unchanged
from fastio.memory.load_buffers import bytes_of
from fastio.results import Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, is_resident

_NATIVE = ("uring", "posix")


class SourceFile:
    """An open file of the source, of ``size`` bytes. ``damaged(run)`` is the error for a run without its CRC-32.

    Without a tool that ``policy`` names, one that bypasses the page cache comes first for a file that is not in it, and
    one that does not for others. Dictionaries know the times of whole loads, on a disk that does nothing else: other
    ones, which they do not learn here either.
    """

    def __init__(
        self, path: str, fd: int, size: int, file_format: str, policy: Any, damaged: Callable[[Run], Exception]
    ) -> None:
        self.path = path
        self.fd = fd
        self.size = size
        self.is_verified = True
        self.damaged = damaged
        self._format = file_format
        self._policy = policy
        self._unchanged = Unchanged(path, fd, size)
        self._plan: TransferPlan | None = None
        self._tools: tuple[str, ...] = ()
        self._started = 0.0
        self._nbytes = 0
        self._last: Transfer | None = None
        self._notes: dict[str, None] = {}

    def read(self, extents: Sequence[Extent], control: Control) -> Sequence[int]:
        """Fill host memory by sorted extents, apart and not empty; return a CRC-32 for each."""
        if self._plan is None:
            self._started = time.perf_counter()
            resident = is_resident(self.path, self.fd, self.size)
            first = ReadRequest(self.path, self.fd, self.size, extents, None, resident)
            plan = plan_read(first, self._policy, self._format)
            self._plan, self._tools = plan, plan.tools if plan.fixed else _ordered(plan.tools, plan.resident)
        request = ReadRequest(self.path, self.fd, self.size, extents, None, self._plan.resident, control)

        def work(execution: Execution) -> Outcome[tuple[Sequence[int], tuple[str, ...]]]:
            moved = fill(request, execution)
            return Outcome(moved, (moved.checksums or (), execution.left))

        # A tool that could not do it is not tried again.
        self._last, (values, self._tools) = execute(self._plan, work, self._started, control, self._tools, asks=False)
        self._nbytes += sum(extent.nbytes for extent in extents)
        self._notes.update(dict.fromkeys(self._last.fallbacks))
        return values

    def transfer(self) -> Transfer | None:
        """The result of all reads; None if there were none."""
        if self._last is None or self._plan is None:
            return None
        where = f"the file is {'' if self._plan.resident else 'not '}in the page cache"
        return replace(
            self._last, reason=self._plan.fixed or where, nbytes=self._nbytes, verified=self.is_verified,
            fallbacks=tuple(self._notes), seconds=time.perf_counter() - self._started,
        )  # fmt: skip

    def check_unchanged(self) -> None:
        """Raise CorruptFileError if the file was written to since it was opened."""
        self._unchanged.check("converted", "convert it")


def _ordered(tools: Sequence[str], resident: bool) -> tuple[str, ...]:
    """Native tools first, which scatter a block of the file to many tensors: direct ones for a cold file."""

    def rank(tool: str) -> tuple[bool, bool]:
        return tool not in _NATIVE, registry.get(tool).capabilities.direct == resident

    return tuple(sorted(tools, key=rank))


class Run(NamedTuple):
    """``nbytes`` bytes of a tensor, at ``offset`` of a file, and their CRC-32, if it is known.

    ``name`` is that of the tensor in the file.
    """

    file: SourceFile
    offset: int
    nbytes: int
    crc: int | None
    name: str

    def compare(self, value: int) -> None:
        """Raise an error unless this is the CRC-32 of the bytes, or none is known."""
        if self.crc is not None and self.crc != value:
            self.file.check_unchanged()
            raise self.file.damaged(self)

    def read(self) -> torch.Tensor:
        """Read and compare all of it: uint8 of shape (nbytes,), in memory of its own."""
        with translate_native_errors(self.file.path):
            memory = Mapping(self.nbytes, used=True)
        extent = Extent(self.offset, self.nbytes, memory.address, True, "cpu", memory, self.name)
        (value,) = self.file.read([extent], Control())
        self.compare(value)
        return bytes_of(memory, 0, self.nbytes)


class SourceTensor(NamedTuple):
    """A tensor of the source, of ``nbytes`` bytes: row by row, they are ``runs``, none of them empty.

    Where they lie in another order, ``packed`` yields its bytes row by row: contiguous host memory, valid until the
    next one.
    """

    name: str
    dtype: torch.dtype
    shape: Sequence[int]
    nbytes: int
    runs: Sequence[Run]
    packed: Callable[[], Iterator[torch.Tensor]] | None = None


class Source(NamedTuple):
    """An open source: its tensors in order, without those that are others of them: ``aliases`` maps names to these.

    ``order`` has all names. ``is_nameless``: it holds one tensor, whose name is empty. ``metadata``: text of its files.
    """

    files: list[SourceFile]
    tensors: list[SourceTensor]
    order: list[str]
    aliases: dict[str, str]
    metadata: dict[str, str] | None
    is_nameless: bool = False
