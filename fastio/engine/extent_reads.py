"""Fills memory that is there from an open file, by the tool that a dictionary chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from fastio._native import Control
from fastio.engine import checksums
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution, Outcome, execute
from fastio.engine.plan import COLUMNS, IN_PLACE, TransferPlan
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import ToolUnavailableError
from fastio.formats.detect import PT
from fastio.results import Transfer
from fastio.transports.extent_rows import ExtentRows, entries, total_nbytes
from fastio.transports.selection import Need
from fastio.transports.transport import LOAD, Extent, ReadRequest, Span, TransportResult, is_resident

_CPU = torch.device("cpu")
THROUGH_CACHE = "posix"
"""The tool that reads by way of the page cache."""


def plan_read(request: ReadRequest, policy: Any, file_format: str = PT, in_place: bool = False) -> TransferPlan:
    """Plan to fill the memory of a request's extents, which was used before if ``in_place``.

    ToolUnavailableError if no tool can. Otherwise as :func:`fastio.engine.tool_selection.plan_transfer`.
    """
    storages = entries(request.extents)
    devices = {_CPU if entry.device == "cpu" else entry.owner.device for entry in storages} or {_CPU}
    need: Need = "extents"
    known_as = IN_PLACE if in_place else ""
    if isinstance(request.extents, ExtentRows):
        need, known_as = "rows", COLUMNS
    plan = plan_transfer(
        LOAD, request.path, file_format, devices, total_nbytes(request.extents), len(storages), policy, need,
        resident=bool(request.resident), known_as=known_as,
    )  # fmt: skip
    if not plan.tools:
        raise ToolUnavailableError("auto", f"no tool fills memory on {', '.join(map(str, devices))}", "load to the CPU")
    if request.cached and not plan.fixed and devices == {_CPU}:
        return plan._replace(tools=(THROUGH_CACHE,), fixed="other ranks read the same pages of the page cache")
    return plan


def read_extents(
    path: str,
    fd: int,
    size: int,
    extents: Sequence[Extent],
    span: Span | None,
    policy: Any,
    progress: Progress | None,
    file_format: str = PT,
    in_place: bool = False,
    cached: bool = False,
    control: Control | None = None,
) -> tuple[Transfer, Sequence[int]]:
    """Fill given memory from an open file; return also a CRC-32 for each extent, which the caller must compare.

    Extents are sorted, apart and not empty; ``span`` is as in :class:`fastio.transports.transport.ReadRequest`.
    ``in_place``: the memory was used before. ``cached``: host memory is filled by way of the page cache, unless
    ``policy`` names a tool. ``control`` cancels the read. The memory may have changed when an error is raised, also one
    of :func:`plan_read`.
    """
    started = time.perf_counter()
    resident = is_resident(path, fd, size)
    request = ReadRequest(path, fd, size, extents, span, resident, control, cached)
    plan = plan_read(request, policy, file_format, in_place)

    # Interrupts and progress need a thread of its own for the transfer. Only the main thread is interrupted.
    is_waited_for = progress is not None or threading.current_thread() is threading.main_thread()

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        moved = fill(request, execution, plan.nbytes if is_waited_for else 0, progress)
        return Outcome(moved, moved.checksums or ())

    return execute(plan, work, started, request.control)


def fill(
    request: ReadRequest, execution: Execution, nbytes: int = 0, progress: Progress | None = None
) -> TransportResult:
    """Have the first tool that can do it fill the memory; compute the checksums if it did not.

    A read of many ``nbytes`` runs on a thread of its own, which has ended when this returns or raises.
    """

    def read() -> TransportResult:
        if not request.extents:
            return TransportResult("cached", ())
        moved = execution.move(request)
        if moved.checksums is not None:
            return moved
        values, notes = checksums.of_extents(request.extents)
        return moved._replace(checksums=values, notes=(*moved.notes, *notes))

    with under_way(read, request.control, nbytes) as job:
        return job.wait(progress)
