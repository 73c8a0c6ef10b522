"""Saves to a file: fills a temporary file by the tool that is chosen, then replaces the old file with it."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol, cast

import torch

from fastio._native import Control
from fastio.engine import checksums, header_digests, record_checksums, sequential_write
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Execution, Outcome, call_transport, execute, result_of
from fastio.engine.host_pieces import Packed, write_packed
from fastio.engine.plan import FileSave, InPlaceSave, SavePlan, SaveRequest, TorchSave
from fastio.engine.progress import tell_end
from fastio.engine.save_plan import plan_layout, plan_save
from fastio.engine.torch_save import fill_by_torch, save_by_torch, write_by_torch, write_to_object
from fastio.errors import TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.files.full_write import whole_writes
from fastio.formats.detect import PT, SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.safetensors import sidecar
from fastio.results import SaveResult, Transfer
from fastio.transports import registry
from fastio.transports.transport import SAVE, TransportResult, WriteRequest

_CPU = frozenset({"cpu"})


class NewFile(Protocol):
    """A file that is being made, empty and open for reading and writing, invisible until it is committed."""

    path: str

    @property
    def fd(self) -> int: ...

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks. TransferError if the system refuses."""

    def commit(self, durable: bool) -> None:
        """Make it visible. With ``durable``, it survives a power cut once this returns. TransferError if it cannot."""


def save_file(request: SaveRequest, progress: Progress | None, file: Any = None) -> SaveResult:
    """Save to a path, which holds the whole old file or the whole new one at any time; or to a file object.

    That is written to at its position, as torch.save does.
    """
    started = time.perf_counter()
    plan = plan_save(request, file)
    return execute_save(plan, started, progress)


def execute_save(plan: SavePlan, started: float, progress: Progress | None) -> SaveResult:
    """Carry out a plan."""
    request = plan.request
    if isinstance(plan, InPlaceSave):
        return cast(SaveResult, _save_in_place(plan, started, progress))
    with AtomicFile(request.path, request.follow_link) as new:
        if isinstance(plan, TorchSave):
            result = save_by_torch(plan, new, started, progress)
        else:
            result, _ = execute(plan.transfer, partial(_save, plan, new, progress), started)
    return cast(SaveResult, result)


def write_layout(
    layout: Layout,
    new: NewFile,
    file_format: str,
    policy: Any,
    durable: bool,
    progress: Progress | None,
    still: bool = False,
) -> tuple[SaveResult, Sequence[int]]:
    """Fill a new file with a layout and commit it; return also a CRC-32 for each extent that asks for one.

    ``still``: the storages cannot change meanwhile, as a caller's own might.
    """
    started = time.perf_counter()

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        moved, values = execution.run(lambda tool: _fill(tool, layout, new, durable, progress, still))
        new.commit(durable)
        return Outcome(moved, values, verified=True)

    result, values = execute(plan_layout(layout, new.path, file_format, policy, durable), work, started)
    return cast(SaveResult, result), values


def _save(plan: FileSave, new: AtomicFile, progress: Progress | None, execution: Execution) -> Outcome[None]:
    """Fill the new file, and commit it."""
    request, layout = plan.request, plan.layout
    with_crcs = torch.serialization.get_crc32_options()

    def fill(tool: str) -> TransportResult:
        if request.file_format not in registry.get(tool).capabilities.whole:
            return _fill(tool, layout, new, request.durable, progress)[0]
        _empty(new, layout.size)  # torch starts the file anew; a full disk shows here, with its errno
        notes = fill_by_torch(request, new)
        tell_end(progress, layout.size)
        return TransportResult("library", notes=notes)

    moved = execution.run(fill)
    # Before the commit: a sidecar must never be beside a file that is not its own.
    notes = sidecar.remove_old(request.path) if request.file_format == SAFETENSORS else ()
    new.commit(request.durable)
    has_crcs = moved.route != "library" or with_crcs
    verified = has_crcs if request.file_format == PT else bool(layout.digests)
    return Outcome(moved._replace(notes=(*moved.notes, *notes)), None, verified)


def _save_in_place(plan: InPlaceSave, started: float, progress: Progress | None) -> Transfer:
    """Write to a file object, or to a file that cannot be replaced: a device, a pipe, an open file that was removed."""
    if plan.file is not None:
        return _write_in_order(plan, plan.file, started, progress)
    path = plan.request.path
    try:
        file = io.FileIO(path, "wb")
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "open", path) from error
    with file:
        return _write_in_order(plan, file, started, progress)


def _write_in_order(plan: InPlaceSave, f: Any, started: float, progress: Progress | None) -> Transfer:
    request, layout = plan.request, plan.layout
    tool, route, nbytes, verified = "torch", "library" if plan.file is None else "stream", 0, False
    if layout is not None:
        tool, route, nbytes, verified = "memory", "stream", layout.payload, bool(layout.digests)
        sequential_write.write(layout, whole_writes(f, request.path), request.path)
        if callable(flush := getattr(f, "flush", None)):
            flush()  # as torch does: what was saved can be loaded, by another process, too
    elif plan.file is None:
        write_by_torch(request, f)
    else:
        write_to_object(request, f)
    tell_end(progress, nbytes)
    # A file object's durability is its owner's.
    notes = (f"not durable: {plan.why}",) if request.durable and plan.file is None else ()
    moved, seconds = TransportResult(route, notes=notes), time.perf_counter() - started
    return result_of(SAVE, request.path, request.file_format, tool, moved, plan.why, nbytes, seconds, verified=verified)


def _fill(
    tool: str, layout: Layout, new: NewFile, durable: bool, progress: Progress | None, still: bool = False
) -> tuple[TransportResult, Sequence[int]]:
    """Have a transport fill the new file; return also the CRCs of the extents that ask for one."""
    _empty(new, layout.size)
    control = Control()
    control.still = still
    patches: Sequence[Any] = layout.patches
    sealed: checksums.Checksums | None = None
    if not registry.get(tool).capabilities.checksums:
        layout.synchronize()
        sealed = checksums.seal(layout)
        patches = ()
    request = WriteRequest(new.path, new.fd, layout.size, layout.extents, patches, durable, control)

    def write() -> tuple[TransportResult, Packed]:
        moved = call_transport(tool, request)  # first: it may write zeros between the extents
        return moved, write_packed(layout.strided, new.path, new.fd, control)

    with under_way(write, control, layout.size) as job:
        moved, packed = job.wait(progress)
    notes, values = packed.notes, moved.checksums or ()
    if sealed is not None:
        notes, values = (*notes, *sealed.notes), sealed.values
        # Reading back what bypassed the host's memory would cost as much as the save.
        if not still and layout.devices <= _CPU:
            notes += record_checksums.reseal(layout, sealed.values, new.path, new.fd)
    if layout.digests:
        crcs = {extent.offset: crc for extent, crc in zip(layout.extents, values, strict=True)} | packed.checksums
        header_digests.write_after(layout, crcs, new.path, new.fd)
    return moved._replace(notes=(*moved.notes, *notes)), values


def _empty(new: NewFile, nbytes: int) -> None:
    """Drop what a tool wrote before it refused, and reserve the blocks."""
    os.ftruncate(new.fd, 0)
    new.allocate(nbytes)
