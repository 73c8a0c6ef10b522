"""Reads parts of an open file one after the other, while other transfers run."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fastio._native import Control
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.extent_reads import fill
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import ToolUnavailableError
from fastio.results import Transfer
from fastio.transports import registry
from fastio.transports.transport import LOAD, Extent, ReadRequest, is_resident

_NATIVE = ("uring", "posix")


class ChunkReads:
    """Reads of host memory from an open file of ``size`` bytes, of which about ``nbytes`` in ``count`` tensors follow.

    A tool that bypasses the page cache comes first for a file that is not in it, one that does not for others, unless
    ``policy`` names a tool. Dictionaries know the times of whole loads, on a disk that does nothing else: other ones,
    which they do not learn here either.
    """

    def __init__(self, path: str, fd: int, size: int, nbytes: int, count: int, policy: Any, file_format: str) -> None:
        self._started = time.perf_counter()
        self._file = (path, fd, size)
        self._control = Control()
        resident = is_resident(path, fd, size)
        cpu = {torch.device("cpu")}
        plan = plan_transfer(LOAD, path, file_format, cpu, nbytes, count, policy, "extents", resident=resident)
        if not plan.tools:
            raise ToolUnavailableError("auto", "no tool fills host memory", "load with policy='posix'")
        self._reason = plan.fixed or f"the file is {'' if resident else 'not '}in the page cache"
        self._plan = plan if plan.fixed else plan._replace(tools=_ordered(plan.tools, resident))
        self._nbytes = 0
        self._last: Transfer | None = None
        self._notes: dict[str, None] = {}

    def read(self, extents: Sequence[Extent]) -> Sequence[int]:
        """Fill extents (sorted, apart, not empty); return a CRC-32 for each. Raises as transports do."""
        request = ReadRequest(*self._file, extents, None, self._plan.resident, self._control)
        nbytes = sum(extent.nbytes for extent in extents)

        def work(execution: Execution) -> Outcome[tuple[Sequence[int], tuple[str, ...]]]:
            moved = fill(request, execution, nbytes)
            return Outcome(moved, (moved.checksums or (), execution.left))

        self._last, (values, left) = execute(self._plan, work, self._started, self._control, asks=False)
        self._plan = self._plan._replace(tools=left)  # a tool that could not do it is not tried again
        self._nbytes += nbytes
        self._notes.update(dict.fromkeys(self._last.fallbacks))
        return values

    def transfer(self, verified: bool) -> Transfer | None:
        """The result of all reads until now; None if there was none."""
        if self._last is None:
            return None
        return replace(
            self._last, reason=self._reason, nbytes=self._nbytes, verified=verified, fallbacks=tuple(self._notes),
            seconds=time.perf_counter() - self._started,
        )  # fmt: skip


def _ordered(tools: Sequence[str], resident: bool) -> tuple[str, ...]:
    """Native tools first, which scatter a block of the file to many tensors: direct ones for a cold file."""

    def rank(tool: str) -> tuple[bool, bool]:
        return tool not in _NATIVE, registry.get(tool).capabilities.direct == resident

    return tuple(sorted(tools, key=rank))
