"""Reads parts of an open file one after the other, while other transfers run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fastio._native import Control
from fastio.engine.background_job import under_way
from fastio.engine.executor import Execution
from fastio.engine.extent_reads import fill, load_operation
from fastio.engine.tool_selection import checksumming_tools
from fastio.errors import ToolUnavailableError
from fastio.results import Transfer, completed
from fastio.transports import registry
from fastio.transports.transport import LOAD, Extent, ReadRequest

_NATIVE = ("uring", "posix")


class ChunkReads:
    """Reads of host memory from an open file of ``size`` bytes, of which about ``nbytes`` in ``count`` tensors follow.

    A tool that bypasses the page cache comes first for a file that is not in it, one that does not for others, unless
    ``policy`` names a tool. Dictionaries know the times of whole loads, on a disk that does nothing else: other ones,
    which they do not learn here either.
    """

    def __init__(self, path: str, fd: int, size: int, nbytes: int, count: int, policy: Any, file_format: str) -> None:
        self._file = (path, fd, size)
        self._control = Control()
        cpu = {torch.device("cpu")}
        operation = load_operation(path, file_format, cpu, nbytes, count, policy, time.perf_counter(), fd, size)
        among = checksumming_tools(LOAD, operation.devices)
        operation = operation._replace(among=among)
        self._execution = Execution(operation, self._control)
        self._reason = self._execution.decision.reason
        if not self._execution.decision.fixed:
            self._execution = Execution(operation, self._control, _ordered(among, operation.resident))
            self._reason = f"the file is {'' if operation.resident else 'not '}in the page cache"
        if not self._execution.tool:
            raise ToolUnavailableError("auto", "no tool fills host memory", "load with policy='posix'")
        self._nbytes = 0
        self._route = ""
        self._notes: dict[str, None] = {}

    def read(self, extents: Sequence[Extent]) -> Sequence[int]:
        """Fill extents (sorted, apart, not empty); return a CRC-32 for each. Raises as transports do."""
        request = ReadRequest(*self._file, extents, None, self._execution.operation.resident, self._control)
        nbytes = sum(extent.nbytes for extent in extents)
        with under_way(lambda: fill(request, self._execution), self._control, nbytes) as job:
            moved = job.wait()
        self._nbytes += nbytes
        self._route = moved.route
        self._notes.update(dict.fromkeys(moved.notes))
        return moved.checksums or ()

    def transfer(self, verified: bool) -> Transfer:
        """The result of all reads until now."""
        execution, operation = self._execution, self._execution.operation
        notes = (*execution.decision.missing, *execution.failures, *self._notes)
        result = completed(
            Transfer, LOAD, operation.path, operation.started, format=operation.file_format, tool=execution.tool,
            route=self._route, reason=self._reason, nbytes=self._nbytes, notes=notes,
        )  # fmt: skip
        return replace(result, verified=verified)


def _ordered(tools: Sequence[str], resident: bool) -> tuple[str, ...]:
    """Native tools first, which scatter a block of the file to many tensors: direct ones for a cold file."""

    def rank(tool: str) -> tuple[bool, bool]:
        return tool not in _NATIVE, registry.get(tool).capabilities.direct == resident

    return tuple(sorted(tools, key=rank))
