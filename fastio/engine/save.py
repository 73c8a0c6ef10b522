"""Saves to a file: fills a temporary file by the tool that is chosen, then replaces the old file with it."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, cast

import torch

from fastio._native import Control
from fastio.engine import checksums, header_digests, record_checksums
from fastio.engine.background_job import Progress, tell_end, under_way
from fastio.engine.executor import Execution, Outcome, call_transport, execute
from fastio.engine.host_pieces import write_packed
from fastio.engine.plan import FileSave, InPlaceSave, SavePlan, SaveRequest, TorchSave
from fastio.engine.save_plan import plan_layout, plan_save
from fastio.engine.sequential_write import save_in_place
from fastio.engine.torch_save import fill_by_torch, save_by_torch
from fastio.engine.unpicklable import name_unpicklable
from fastio.files.atomic_file import AtomicFile
from fastio.files.free_space import free_space_named
from fastio.files.uncommitted_file import UncommittedFile
from fastio.formats.detect import PT, SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.safetensors import sidecar
from fastio.remote.urls import is_remote
from fastio.results import SaveResult
from fastio.transports import registry
from fastio.transports.transport import Patch, TransportResult, WriteRequest
from fastio.volumes.object_file import ObjectFile, StagedObject
from fastio.volumes.opening import is_in_volume


def save_file(request: SaveRequest, progress: Progress | None, file: Any = None) -> SaveResult:
    """Save to a path, which holds the whole old file or the whole new one at any time; or to a file object.

    That is written to at its position, as torch.save does.
    """
    if is_remote(request.path) and file is None:
        return _save_remotely(request, progress)
    started = time.perf_counter()
    try:
        return execute_save(plan_save(request, file), started, progress)
    except Exception as error:
        if request.file_format == PT:
            protocol, module = request.arguments.get("pickle_protocol", 2), request.arguments.get("pickle_module")
            name_unpicklable(error, request.obj, "obj", request.path, protocol, module or pickle)
        raise


def _save_remotely(request: SaveRequest, progress: Progress | None) -> SaveResult:
    """Save to a file on this machine, then upload that."""
    from fastio.remote.saving import saved_remotely  # not at import: few files are remote

    def save(path: str) -> SaveResult:
        return save_file(request._replace(path=path), progress)

    return saved_remotely(request.path, save)


def execute_save(plan: SavePlan, started: float, progress: Progress | None) -> SaveResult:
    """Carry out a plan."""
    request = plan.request
    if isinstance(plan, InPlaceSave):
        return cast(SaveResult, save_in_place(plan, started, progress))
    in_volume = is_in_volume(request.path)
    if isinstance(plan, TorchSave):
        file = StagedObject(request.path) if in_volume else AtomicFile(request.path, request.follow_link)
        with file, free_space_named(request.path):
            result = save_by_torch(plan, file, started, progress)
    else:
        new = ObjectFile(request.path) if in_volume else AtomicFile(request.path, request.follow_link)
        with new:
            result, _ = execute(plan.transfer, partial(_save, plan, new, progress), started)
    return cast(SaveResult, result)


def write_layout(
    layout: Layout,
    new: UncommittedFile,
    file_format: str,
    policy: Any,
    durable: bool,
    progress: Progress | None,
    still: bool = False,
    crcs: Mapping[str, int] = MappingProxyType({}),
) -> tuple[SaveResult, Sequence[int]]:
    """Fill a new file with a layout and commit it; return also a CRC-32 for each extent that asks for one.

    ``still``: the storages cannot change meanwhile, as a caller's own might. ``crcs``: those that are known then, by
    the names of their extents; they are not computed again.
    """
    started = time.perf_counter()
    known = {
        index: crcs[extent.name]
        for index, extent in enumerate(layout.extents)
        if extent.checksum and extent.name in crcs
    }

    def work(execution: Execution) -> Outcome[Sequence[int]]:
        with free_space_named(new.path, layout.size):
            moved = execution.run(lambda tool: _fill(tool, layout, new, durable, progress, still, known))
        new.commit(durable)
        return Outcome(moved, moved.checksums or (), verified=True)

    result, values = execute(plan_layout(layout, new.path, file_format, policy, durable), work, started)
    return cast(SaveResult, result), values


def _save(
    plan: FileSave, new: AtomicFile | ObjectFile, progress: Progress | None, execution: Execution
) -> Outcome[None]:
    """Fill the new file, and commit it."""
    request, layout = plan.request, plan.layout
    has_crcs = True

    def fill(tool: str) -> TransportResult:
        nonlocal has_crcs
        if request.file_format not in registry.get(tool).capabilities.whole or not isinstance(new, AtomicFile):
            has_crcs = True
            return _fill(tool, layout, new, request.durable, progress)
        has_crcs = torch.serialization.get_crc32_options()
        _empty(new, layout.size)  # torch starts the file anew; a full disk shows here, with its errno
        notes = fill_by_torch(request, new)
        tell_end(progress, layout.size)
        return TransportResult("library", notes=notes)

    with free_space_named(request.path, layout.size):
        moved = execution.run(fill)
    # Before the commit: a sidecar must never be beside a file that is not its own.
    notes = sidecar.remove_old(request.path) if request.file_format == SAFETENSORS else ()
    new.commit(request.durable)
    verified = has_crcs if request.file_format == PT else bool(layout.digests)
    return Outcome(moved._replace(notes=(*moved.notes, *notes)), None, verified)


def _fill(
    tool: str,
    layout: Layout,
    new: UncommittedFile,
    durable: bool,
    progress: Progress | None,
    still: bool = False,
    known: Mapping[int, int] = MappingProxyType({}),
) -> TransportResult:
    """Have a transport fill the new file. The result has the CRC-32s of the extents that ask for one.

    Those that are ``known``, by the indices of their extents, are not computed.
    """
    _empty(new, layout.size)
    layout = checksums.with_known(layout, known)
    control = Control()
    control.still = still
    patches: Sequence[Patch] = layout.patches
    notes: tuple[str, ...] = ()
    sealed: list[int] | None = None
    if not registry.get(tool).capabilities.checksums:
        layout.synchronize()
        sealed, notes = checksums.seal(layout)
        patches = ()
    request = WriteRequest(new.path, new.fd, layout.size, layout.extents, patches, durable, control)

    def write() -> tuple[TransportResult, dict[int, int], tuple[str, ...]]:
        moved = call_transport(tool, request)  # first: it may write zeros between the extents
        return moved, *write_packed(layout.strided, new.path, new.fd, control)

    with under_way(write, control, layout.size) as job:
        moved, packed, why_packed = job.wait(progress)
    notes = (*moved.notes, *why_packed, *notes)
    values = moved.checksums or () if sealed is None else sealed
    if known:
        values = [known.get(index, value) for index, value in enumerate(values)]
    # Reading back what bypassed the host's memory would cost as much as the save.
    if sealed is not None and not still and layout.devices <= {"cpu"}:
        notes += record_checksums.reseal(layout, sealed, new.path, new.fd)
    if layout.digests:
        crcs = {extent.offset: crc for extent, crc in zip(layout.extents, values, strict=True)} | packed
        header_digests.write_after(layout, crcs, new.path, new.fd)
    return moved._replace(checksums=values, notes=notes)


def _empty(new: UncommittedFile, nbytes: int) -> None:
    """Drop what a tool wrote before it refused, and reserve the blocks."""
    if os.fstat(new.fd).st_size:  # else ext4 would begin to write the file to the disk when it is closed
        os.ftruncate(new.fd, 0)
    new.allocate(nbytes)
