"""Loads from a file: plans, reads the bytes, checks them, and only then makes the object."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fastio._native import Control
from fastio.engine.background_job import Progress, tell_end
from fastio.engine.executor import Execution, Outcome, execute, result_of
from fastio.engine.extent_reads import fill
from fastio.engine.load_plan import detected, plan_load, plan_source, torch_load
from fastio.engine.plan import FileLoad, LoadPlan, LoadRequest, MappedLoad, TorchLoad
from fastio.engine.torch_load import MAPPED, UNSEALED, load_by_torch, read_by_torch
from fastio.errors import CorruptFileError
from fastio.formats.detect import SAFETENSORS
from fastio.formats.pt.reader import NeedsTorchError
from fastio.formats.pt.tensor_names import name_tensors
from fastio.formats.source import Source
from fastio.memory.load_buffers import LoadBuffers
from fastio.memory.mapped_file import MappedFile
from fastio.remote.urls import is_remote
from fastio.results import Transfer
from fastio.runtime.gc_pause import gc_paused
from fastio.transports import registry
from fastio.transports.transport import LOAD, ReadRequest, TransportResult
from fastio.volumes import views
from fastio.volumes.object_file import opened


def load_file(request: LoadRequest, progress: Progress | None) -> tuple[Any, Transfer]:
    """Load from a path; the object is whole and checked when it is returned."""
    started = time.perf_counter()
    with opened(request.path) as (fd, size):
        file_format = detected(request.path, fd, size)
        return with_download(request, started, lambda began: load_open(request, fd, size, file_format, began, progress))


def with_download(
    request: LoadRequest, started: float, load: Callable[[float], tuple[Any, Transfer]]
) -> tuple[Any, Transfer]:
    """Call ``load`` with when it began. Of a remote file it begins now: dictionaries do not learn downloads.

    The result has the time since ``started``.
    """
    if not is_remote(request.path):
        return load(started)
    began = time.perf_counter()
    obj, transfer = load(began)
    note = f"from a local copy of the remote file, which was there after {began - started:.2f} s"
    seconds = time.perf_counter() - started
    return obj, replace(transfer, seconds=seconds, fallbacks=(*transfer.fallbacks, note))


def load_open(
    request: LoadRequest, fd: int, size: int, file_format: str | None, started: float, progress: Progress | None
) -> tuple[Any, Transfer]:
    """Load from an open file of ``size`` bytes and of a format; ``request.path`` is what errors call it."""
    plan = plan_load(request, fd, size, file_format)
    try:
        obj, transfer = execute_load(plan, fd, size, started, progress)
    except CorruptFileError as error:
        if file_format == SAFETENSORS:
            error.name_as_tensor()
        elif plan.request.path == error.path:
            name_tensors(error)
        raise
    except NeedsTorchError as reason:  # the pickle can be judged only while it is unpickled
        obj, transfer = load_by_torch(torch_load(request, file_format, str(reason)), fd, size, started, progress)
    except pickle.UnpicklingError:
        if isinstance(plan, TorchLoad) or not request.weights_only or request.into is not None:
            raise
        # torch.load words this error, with its advice to the user: let it do so.
        by_torch = torch_load(request, file_format, "the unpickler refused the object")
        obj, transfer = load_by_torch(by_torch, fd, size, started, progress)
    notes = plan.request.notes
    return obj, replace(transfer, fallbacks=(*transfer.fallbacks, *notes)) if notes else transfer


def execute_load(plan: LoadPlan, fd: int, size: int, started: float, progress: Progress | None) -> tuple[Any, Transfer]:
    """Carry out a plan. NeedsTorchError and UnpicklingError if the pickle turns out to be torch's to load."""
    if isinstance(plan, TorchLoad):
        return load_by_torch(plan, fd, size, started, progress)
    with gc_paused():
        if isinstance(plan, MappedLoad):
            return _map(plan, fd, size, started, progress)
        control = Control()
        work = partial(_load, plan, fd, size, control, progress)
        transfer, (corrected, obj) = execute(plan.transfer, work, started, control)
        if corrected is None:
            return obj, transfer
    return execute_load(plan_source(plan.request, fd, size, corrected, plan.device), fd, size, started, progress)


def _load(
    plan: FileLoad, fd: int, size: int, control: Control, progress: Progress | None, execution: Execution
) -> Outcome[tuple[Source | None, Any]]:
    """Read every byte, check it, and only then make the object: other code sees only memory that was checked.

    Gives another source if the file's headers say that its offsets are others, else the object.
    """
    request, source = plan.request, plan.source
    if source.format in registry.get(execution.tool).capabilities.whole:
        moved, obj = read_by_torch(request, fd, size, source.format, False, progress)
        return Outcome(moved, (None, obj))
    buffers = LoadBuffers(request.path, source.regions, plan.device, plan.verified, source.aligned, request.into)
    try:
        wanted = ReadRequest(request.path, fd, size, buffers.extents, buffers.span, plan.transfer.resident, control)
        moved = fill(wanted, execution, source.nbytes, progress)
        corrected = source.confirm(buffers.span if moved.filled_span else None) if source.confirm else None
        if corrected is not None:
            buffers.release()  # or there would be memory for two
            return Outcome(moved, (corrected, None), counts=False)
        if plan.verified:
            source.check(moved.checksums or ())
        obj = source.make(request.path, buffers.storage)
    except BaseException:
        buffers.release()
        raise
    notes = (UNSEALED, *moved.notes) if request.verify and not plan.verified else moved.notes
    return Outcome(moved._replace(notes=notes), (None, obj), plan.verified)


def _map(plan: MappedLoad, fd: int, size: int, started: float, progress: Progress | None) -> tuple[Any, Transfer]:
    """Make the object over mapped pages, which nothing is compared with. Of a ``.pt`` the pickle was.

    All storages lie in the ``size`` bytes that the file has now: the source's offsets were compared with that.
    """
    request, source = plan.request, plan.source
    source = (source.confirm(None) if source.confirm else None) or source
    views.fill(fd)
    mapping = MappedFile(request.path, fd, size, source.aligned)
    obj = source.make(request.path, mapping.storage)
    tell_end(progress, source.nbytes)
    copied = [f"copied: {mapping.copied} storages that are not aligned in the file"] if mapping.copied else []
    moved = TransportResult("mmap", notes=(*([MAPPED] if request.verify else []), *copied))
    reason, seconds = "mmap: pages are read when they are used", time.perf_counter() - started
    return obj, result_of(LOAD, request.path, source.format, "mmap", moved, reason, source.nbytes, seconds)
