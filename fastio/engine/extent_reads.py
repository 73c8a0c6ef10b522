"""Fills memory that is there from an open file, by the tool that a dictionary chooses."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from fastio._native import Control
from fastio.devices import identity
from fastio.engine import checksums
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution
from fastio.engine.operation import COLUMNS, IN_PLACE, Operation
from fastio.engine.tool_selection import checksumming_tools, row_tools
from fastio.engine.transport_errors import call_transport
from fastio.errors import ToolUnavailableError
from fastio.formats.detect import PT
from fastio.results import Transfer
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports.extent_rows import ExtentRows, entries, total_nbytes
from fastio.transports.transport import LOAD, Extent, ReadRequest, Span, TransportResult, is_resident

_CPU = torch.device("cpu")


def load_operation(
    path: str,
    file_format: str,
    devices: Iterable[torch.device],
    nbytes: int,
    storages: int,
    policy: Any,
    started: float,
    fd: int,
    size: int,
) -> Operation:
    """A load of ``nbytes`` from an open file of ``size`` bytes into memory on ``devices``."""
    with translate_native_errors(path):
        resident = is_resident(fd, size)
    kinds = frozenset(device.type for device in devices)
    return Operation(
        LOAD, path, file_format, kinds, nbytes, storages, policy, started, device=identity(*devices), resident=resident
    )


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
) -> tuple[Transfer, Sequence[int]]:
    """Fill given memory from an open file; return also a CRC-32 for each extent, which the caller must compare.

    Extents are sorted, apart and not empty; ``span`` is as in :class:`fastio.transports.transport.ReadRequest`. Their
    memory may have changed when an error is raised. ``in_place``: it was used before.
    """
    started = time.perf_counter()
    storages = entries(extents)
    devices = {_CPU if entry.device == "cpu" else entry.owner.device for entry in storages} or {_CPU}
    nbytes = total_nbytes(extents)
    operation = load_operation(path, file_format, devices, nbytes, len(storages), policy, started, fd, size)
    control = Control()
    if isinstance(extents, ExtentRows):
        among, known_as = row_tools(LOAD, operation.devices), COLUMNS
    else:
        among, known_as = checksumming_tools(LOAD, operation.devices), IN_PLACE if in_place else ""
    execution = Execution(operation._replace(among=among, known_as=known_as), control)
    if not execution.tool:
        raise ToolUnavailableError("auto", f"no tool fills memory on {', '.join(map(str, devices))}", "load to the CPU")
    request = ReadRequest(path, fd, size, extents, span, operation.resident, control)
    # Interrupts and progress need a thread of its own for the transfer. Only the main thread is interrupted.
    is_waited_for = progress is not None or threading.current_thread() is threading.main_thread()
    with under_way(lambda: fill(request, execution), control, nbytes if is_waited_for else 0) as job:
        moved = job.wait(progress)
    return execution.loaded(moved, verified=False), moved.checksums or ()


def fill(request: ReadRequest, execution: Execution) -> TransportResult:
    """Have the first tool that can do it fill the memory; compute the checksums if it did not."""
    if not request.extents:
        return TransportResult("cached", ())
    moved = execution.run(lambda tool: call_transport(tool, request))
    if moved.checksums is not None:
        return moved
    values, notes = checksums.of_extents(request.extents)
    return moved._replace(checksums=values, notes=(*moved.notes, *notes))
