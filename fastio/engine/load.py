"""Loading from a file: find the tensors' offsets, read the bytes, check them, unpickle."""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fastio import formats
from fastio._native import Control
from fastio.engine.background_job import under_way
from fastio.engine.executor import Execution
from fastio.engine.extent_reads import fill, load_operation
from fastio.engine.mapped_load import load_mapped
from fastio.engine.tool_selection import candidates, verifying_tools
from fastio.engine.torch_load import (
    UNSEALED,
    LoadCall,
    device_named,
    given_arguments,
    is_mapped,
    load_by_torch,
    torch_only,
    without_ignored,
)
from fastio.errors import CorruptFileError, FastIOError, FormatError, UnsupportedError, shortened
from fastio.files.open_file import opened
from fastio.formats.detect import HEAD_BYTES, INDEX_SUFFIX, PT, SAFETENSORS, detect
from fastio.formats.pt import source as pt_source
from fastio.formats.pt.reader import NeedsTorchError, crc_mismatch
from fastio.formats.small_reads import head
from fastio.formats.source import Source, StorageOf
from fastio.memory.load_buffers import LoadBuffers
from fastio.results import Transfer
from fastio.runtime.gc_pause import gc_paused
from fastio.transports import registry
from fastio.transports.transport import LOAD, ReadRequest

_CPU = torch.device("cpu")


def load_file(call: LoadCall) -> tuple[Any, Transfer]:
    """Load from a path; the object is whole and checked when it is returned."""
    started = time.perf_counter()
    with opened(call.path) as (fd, size):
        return load_open(call, fd, size, detect(head(call.path, fd, size, HEAD_BYTES), call.path), started)


def load_open(call: LoadCall, fd: int, size: int, file_format: str | None, started: float) -> tuple[Any, Transfer]:
    """Load from an open file of the format that its first bytes have; ``call.path`` is what errors call it."""
    if call.as_torch and file_format == SAFETENSORS:
        call, ignored = without_ignored(call)
        obj, transfer = load_open(call, fd, size, file_format, started)
        return obj, replace(transfer, fallbacks=(*transfer.fallbacks, *ignored))
    if call.path.endswith(INDEX_SUFFIX) and head(call.path, fd, size, 1) == b"{":
        cure = "name the folder or the index in fastio.safe_open or fastio.load_model, or load a shard"
        raise FormatError(f"{call.path}: it is the index of a model in shards, and holds no tensors; {cure}")
    why = torch_only(call, file_format)
    if why is not None:
        return load_by_torch(call, fd, size, file_format, started, why)
    device = _target(call, file_format or PT)
    mapped = is_mapped(call, file_format)
    if mapped and file_format != PT and device != _CPU:
        raise UnsupportedError(
            f"{call.path}: mmap=True maps .{file_format} into host memory, not into that of {device}; load without mmap"
        )
    with gc_paused():
        planned = _plan(call, fd, size, file_format or PT)
    if isinstance(planned, str):
        return load_by_torch(call, fd, size, file_format, started, planned)
    try:
        with gc_paused():
            if mapped:
                return load_mapped(call, fd, size, started, planned, lambda *source: _build(call, *source))
            return _load_in_place(call, fd, size, started, planned, device)
    except NeedsTorchError as reason:  # the pickle can be judged only while it is unpickled
        return load_by_torch(call, fd, size, file_format, started, str(reason))
    except pickle.UnpicklingError:
        if not call.weights_only or call.into is not None:
            raise
        # torch.load words this error, with its advice to the user: let it do so.
        return load_by_torch(call, fd, size, file_format, started, "the unpickler refused the object")


def _plan(call: LoadCall, fd: int, size: int, file_format: str) -> Source | str:
    """The source of a load into memory of our own, or why torch.load must do it."""
    try:
        return _open_source(call, fd, size, file_format)
    except NeedsTorchError as reason:
        return str(reason)


def _target(call: LoadCall, file_format: str) -> torch.device:
    """The device that storages are loaded onto: the CPU where torch moves them from there as it unpickles."""
    where = call.map_location
    if isinstance(where, (str, bytes, torch.device)):
        device = device_named(where)
        if device is None:
            raise UnsupportedError(f"{call.path}: torch has no device {where!r}; load with map_location='cpu'")
        if file_format != PT and not is_filled(device.type, file_format):
            raise UnsupportedError(
                f"{call.path}: no tool here fills memory on {device} with .{file_format} (fastio.tools() says why); "
                "load with map_location='cpu' (of load_file: device='cpu'), and move the tensors by .to()"
            )
        return device
    if where is not None and file_format != PT:
        kind = "a dict" if isinstance(where, dict) else "a function" if callable(where) else f"the {where!r}"
        raise UnsupportedError(
            f"{call.path}: map_location as {kind} is for .pt files; name a device for .{file_format}"
        )
    return _CPU


def is_filled(kind: str, file_format: str) -> bool:
    """Whether some tool here can fill memory of that kind with what such a file holds."""
    return kind == "cpu" or (registry.is_here(kind) and bool(candidates(LOAD, file_format, frozenset({kind}))[0]))


def _open_source(call: LoadCall, fd: int, size: int, file_format: str) -> Source:
    if file_format == PT:
        arguments = dict(call.arguments)
        return pt_source.source(
            call.path, fd, size, call.map_location, call.weights_only, call.verify, arguments, call.keys
        )
    given = given_arguments(call)
    if given:
        raise TypeError(f"{call.path}: .{file_format} takes none of torch.load's arguments, got {', '.join(given)}")
    # Only .safetensors have parts that are found by name, and checksums that need not be there.
    options = (call.keys, call.verify and not call.mmap) if file_format == SAFETENSORS else ()
    source: Source = formats.module(file_format).source(call.path, fd, size, *options)
    return source


def _load_in_place(
    call: LoadCall, fd: int, size: int, started: float, source: Source, device: torch.device
) -> tuple[Any, Transfer]:
    """Read every byte, check it, and only then make the object: other code sees only memory that was checked."""
    file_format = source.format
    control = Control()
    verified = call.verify and source.checksummed
    operation = load_operation(
        call.path, file_format, {device}, source.nbytes, len(source.regions), call.policy, started, fd, size
    )
    # A library's own load compares no checksums, and reads all of the file into memory of its own: then it is used only
    # by name.
    by_fastio = verified or call.keys is not None or call.into is not None
    among = verifying_tools(file_format, operation.devices) if by_fastio else None
    execution = Execution(operation._replace(among=among), control)
    if not execution.tool:
        return load_by_torch(call, fd, size, file_format, started, f"no tool fills memory on {device}")
    if file_format in _whole_file_formats(execution.tool):
        obj, transfer = load_by_torch(call, fd, size, file_format, started, execution.decision.reason)
        execution.learn()
        return obj, replace(transfer, nbytes=source.nbytes)
    buffers = LoadBuffers(call.path, source.regions, device, verified, source.aligned, call.into)
    try:
        request = ReadRequest(call.path, fd, size, buffers.extents, buffers.span, execution.operation.resident, control)
        with under_way(lambda: fill(request, execution), control, source.nbytes) as job:
            moved = job.wait(call.progress)
        corrected = source.confirm(buffers.span if moved.filled_span else None) if source.confirm else None
        if corrected is None:
            if verified:
                _check(call.path, source, moved.checksums or ())
            obj = _build(call, source, buffers.storage)
            notes = (UNSEALED,) if call.verify and not verified else ()
            return obj, execution.loaded(moved, verified, notes)
    except BaseException:
        buffers.release()
        raise
    buffers.release()  # or there would be memory for two
    return _load_in_place(call, fd, size, started, corrected, device)


def _whole_file_formats(tool: str) -> frozenset[str]:
    transport = registry.find(tool).transport
    return transport.capabilities.whole if transport is not None else frozenset()


def _build(call: LoadCall, source: Source, storage_of: StorageOf) -> Any:
    if source.format == PT:
        return source.build(storage_of)
    try:
        return source.build(storage_of)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # torch's versions differ in which they raise
        if isinstance(error, FastIOError):
            raise
        said = shortened(str(error).partition("\n")[0])  # what follows are frames of torch's C++
        raise CorruptFileError(call.path, None, f"its shapes cannot be tensors: {said}") from None


def _check(path: str, source: Source, values: Sequence[int]) -> None:
    """Compare the CRCs of what was read with what the file says."""
    for region, value in zip(source.regions, values, strict=True):
        if value != region.crc:
            raise crc_mismatch(path, region) if source.damaged is None else source.damaged(region)
