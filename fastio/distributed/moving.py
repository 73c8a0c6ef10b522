"""Data files and transports: which tool fills a file or memory, what it took, what went another way than wished."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fastio import checksums, plan, registry
from fastio._native import Control
from fastio.choosing import Decision, decide, movers
from fastio.distributed.stored import FORMAT
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.formats.layout import Layout
from fastio.job import Job, Progress
from fastio.loading import read_extents
from fastio.outcome import SaveResult, Transfer, publish
from fastio.transport import SAVE, Extent, Moved, Transport, WriteRequest

Fill = Callable[[Transport], Moved]


def write(
    path: str, fd: int, layout: Layout, policy: Any, durable: bool, progress: Progress | None, commit: Callable[[], Any]
) -> tuple[list[int], SaveResult]:
    """Fill an open, allocated file, then ``commit`` it. Gives the CRC-32 of each extent (0 where none is asked for)."""
    started = time.perf_counter()
    devices = layout.devices or frozenset({"cpu"})
    context = plan.save_context(FORMAT, devices, durable, layout.payload, len(layout.extents) // 2)
    folder = os.path.dirname(path)
    decision = decide(policy, SAVE, FORMAT, devices, context, layout.payload, folder, movers(SAVE, devices))
    control = Control()

    def fill(transport: Transport) -> Moved:
        if transport.capabilities.checksums:
            request = WriteRequest(path, fd, layout.size, layout.extents, layout.patches, durable, control)
            return transport.write(request)
        values = checksums.seal(layout)
        moved = transport.write(WriteRequest(path, fd, layout.size, layout.extents, (), durable, control))
        return moved._replace(checksums=values)

    tool, moved, fallbacks = _run(path, decision, fill, control, layout.payload, progress)
    commit()
    seconds = time.perf_counter() - started
    decision.learn(tool, seconds)
    reason = decision.reason if tool == decision.order[0] else f"{decision.order[0]} could not"
    result = SaveResult(
        SAVE, path, FORMAT, tool, moved.route, reason, layout.payload, seconds, durable, True, fallbacks
    )
    publish(result)
    return list(moved.checksums or ()), result


def read(
    path: str, fd: int, size: int, extents: Sequence[Extent], policy: Any, progress: Progress | None
) -> tuple[list[int], Transfer]:
    """Fill memory (extents sorted by offset, at least one). Gives each extent's CRC-32, 0 where none is asked for."""
    told, values = read_extents(path, fd, size, extents, None, policy, progress, FORMAT)
    transfer = replace(told, verified=all(extent.checksum for extent in extents))
    publish(transfer)
    return list(values), transfer


def _run(
    path: str, decision: Decision, fill: Fill, control: Control, nbytes: int, progress: Progress | None
) -> tuple[str, Moved, tuple[str, ...]]:
    """Let the first tool that can do it fill; gives it, what it did, and what was tried before."""
    fallbacks = list(decision.missing)

    def work() -> tuple[str, Moved]:
        for tool in decision.order:
            try:
                return tool, fill(registry.get(tool))
            except (RefusedError, ToolUnavailableError) as error:
                if control.cancelled or (decision.fixed and isinstance(error, ToolUnavailableError)):
                    raise
                fallbacks.append(f"{tool}: {error}")
                decision.fail(tool, str(error))
        raise RefusedError(f"no tool could move the data of {path}: " + ("; ".join(fallbacks) or "none is at hand"))

    with Job(work, control, nbytes) as job:
        tool, moved = job.wait(progress)
    return tool, moved, (*fallbacks, *moved.notes)
