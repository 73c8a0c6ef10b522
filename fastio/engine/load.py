"""Loading from a file: find what is where, read it, check it, unpickle."""

from __future__ import annotations

import functools
import os
import pickle
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from fastio import formats
from fastio._native import Control
from fastio.engine import candidates as plan
from fastio.engine import checksums
from fastio.engine.background_job import Progress, under_way
from fastio.engine.executor import Attempts
from fastio.engine.tool_selection import Decision, candidates, checksumming_tools, decide
from fastio.engine.torch_fallback import (
    UNSEALED,
    LoadCall,
    device_named,
    given_arguments,
    load_by_torch,
    torch_only,
    without_ignored,
)
from fastio.engine.transport_errors import call_transport
from fastio.errors import CorruptFileError, FastIOError, ToolUnavailableError, UnsupportedError, shortened
from fastio.files.open_file import opened
from fastio.formats.detect import HEAD_BYTES, PT, SAFETENSORS, detect
from fastio.formats.pt import source as pt_source
from fastio.formats.pt.reader import NotPlainError, damaged
from fastio.formats.small_reads import head
from fastio.formats.source import Source
from fastio.memory.load_buffers import LoadBuffers
from fastio.results import Transfer
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import LOAD, Extent, ReadRequest, Span, TransportResult, is_resident


def load_file(call: LoadCall) -> tuple[Any, Transfer]:
    """Load from a path; the object is whole and checked when it is returned."""
    started = time.perf_counter()
    with opened(call.path) as (fd, size):
        return load_open(call, fd, size, detect(head(call.path, fd, size, HEAD_BYTES), call.path), started)


def load_open(call: LoadCall, fd: int, size: int, form: str | None, started: float) -> tuple[Any, Transfer]:
    """Load from an open file of the format that its first bytes have; ``call.path`` is what errors call it."""
    if call.as_torch and form == SAFETENSORS:
        call, ignored = without_ignored(call)
        obj, transfer = load_open(call, fd, size, form, started)
        return obj, replace(transfer, fallbacks=(*transfer.fallbacks, *ignored))
    why = torch_only(call, form)
    if why is not None:
        return load_by_torch(call, fd, size, form, started, why)
    try:
        with gc_paused():
            return _load_in_place(call, fd, size, form or PT, started)
    except NotPlainError as reason:
        return load_by_torch(call, fd, size, form, started, str(reason))
    except pickle.UnpicklingError:
        if not call.weights_only:
            raise
        # torch.load words this error, with its advice to the user: let it do so.
        return load_by_torch(call, fd, size, form, started, "the unpickler refused the object")


def _target(call: LoadCall, form: str) -> torch.device:
    """The device that storages are loaded onto: the CPU where torch moves them from there as it unpickles."""
    where = call.map_location
    if isinstance(where, (str, bytes, torch.device)):
        device = device_named(where)
        if device is None:
            raise UnsupportedError(f"{call.path}: torch has no device {where!r}; load with map_location='cpu'")
        if form != PT and not _is_filled(device.type, form):
            raise UnsupportedError(
                f"{call.path}: no tool here fills memory on {device} with .{form} (fastio.tools() says why); load with "
                f"map_location='cpu', and move the tensors by .to()"
            )
        return device
    if where is not None and form != PT:
        kind = "a dict" if isinstance(where, dict) else "a function" if callable(where) else f"the {where!r}"
        raise UnsupportedError(f"{call.path}: map_location as {kind} is for .pt files; name a device for .{form}")
    return torch.device("cpu")


def _is_filled(kind: str, form: str) -> bool:
    """Whether some tool here can fill memory of that kind with what such a file holds."""
    return kind == "cpu" or (registry.is_here(kind) and bool(candidates(LOAD, form, frozenset({kind}))[0]))


def _open_source(call: LoadCall, fd: int, size: int, form: str) -> Source:
    if form == PT:
        return pt_source.source(
            call.path, fd, size, call.map_location, call.weights_only, call.verify, dict(call.arguments)
        )
    given = given_arguments(call)
    if given:
        raise TypeError(f"{call.path}: .{form} takes none of torch.load's arguments, got {', '.join(given)}")
    source: Source = formats.module(form).source(call.path, fd, size)
    return source


def _load_in_place(
    call: LoadCall, fd: int, size: int, form: str, started: float, source: Source | None = None
) -> tuple[Any, Transfer]:
    """Read every byte, check it, and only then make the object: nothing else sees memory that was not checked.

    ``source``: what to read, where that was found out already.
    """
    device = _target(call, form)
    source = source or _open_source(call, fd, size, form)
    nbytes = source.nbytes
    with translate_native_errors(call.path):
        resident = is_resident(fd, size)
    devices = frozenset({device.type})
    context = plan.load_context(form, devices, resident, nbytes, len(source.regions))
    decision = decide(call.policy, LOAD, form, devices, context, nbytes, os.path.dirname(call.path))
    if not decision.order:
        return load_by_torch(call, fd, size, form, started, f"no tool fills memory on {device}")
    if form in _whole(decision.order[0]):
        return _load_whole(call, fd, size, form, started, decision, nbytes)
    buffers = LoadBuffers(call.path, source.regions, device, call.verify and source.checksummed, source.aligned)
    control = Control()
    attempts = Attempts(decision, f"load {call.path}", control=control)
    request = ReadRequest(call.path, fd, size, buffers.extents, buffers.span, resident, control)
    with under_way(lambda: _fill(request, attempts), control, nbytes) as job:
        moved = job.wait(call.progress)
    corrected = source.confirm(buffers.span if moved.filled_span else None) if source.confirm else None
    if corrected is not None:
        del buffers, request  # or there would be memory for two
        return _load_in_place(call, fd, size, form, started, corrected)
    verified = call.verify and source.checksummed
    if verified:
        _check(call.path, source, moved.checksums or ())
    obj = _build(call, source, buffers)
    seconds = time.perf_counter() - started
    decision.learn(attempts.tool, seconds)
    unsealed = (UNSEALED,) if call.verify and not verified else ()
    transfer = Transfer(
        LOAD, call.path, form, attempts.tool, moved.route, attempts.reason, nbytes, seconds, False, verified,
        (*attempts.notes, *unsealed, *moved.notes),
    )  # fmt: skip
    return obj, transfer


def _whole(tool: str) -> frozenset[str]:
    transport = registry.find(tool).transport
    return transport.capabilities.whole if transport is not None else frozenset()


def _load_whole(
    call: LoadCall, fd: int, size: int, form: str, started: float, decision: Decision, nbytes: int
) -> tuple[Any, Transfer]:
    obj, transfer = load_by_torch(call, fd, size, form, started, decision.reason)
    decision.learn(decision.order[0], transfer.seconds)
    return obj, replace(transfer, nbytes=nbytes)


def _build(call: LoadCall, source: Source, buffers: LoadBuffers) -> Any:
    if source.format == PT:
        return source.build(buffers.storage)
    try:
        return source.build(buffers.storage)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # torch's versions differ in which they raise
        if isinstance(error, FastIOError):
            raise
        said = shortened(str(error).partition("\n")[0])  # what follows are frames of torch's C++
        raise CorruptFileError(call.path, None, f"its shapes cannot be tensors: {said}") from None


def read_extents(
    path: str,
    fd: int,
    size: int,
    extents: Sequence[Extent],
    span: Span | None,
    policy: Any,
    progress: Progress | None,
    form: str = PT,
) -> tuple[Transfer, Sequence[int]]:
    """Fill given memory from an open file. Gives a CRC-32 for each extent, which the caller is to compare.

    ``form`` is what dictionaries and the result call the file's format. Extents are sorted, apart and not empty;
    ``span`` is as in :class:`fastio.transports.transport.ReadRequest`. Their memory may have changed when an error is
    raised.
    """
    started = time.perf_counter()
    nbytes = sum(extent.nbytes for extent in extents)
    with translate_native_errors(path):
        resident = is_resident(fd, size)
    devices = frozenset(extent.device for extent in extents) or frozenset({"cpu"})
    context = plan.load_context(form, devices, resident, nbytes, len(extents))
    decision = decide(
        policy, LOAD, form, devices, context, nbytes, os.path.dirname(path), checksumming_tools(LOAD, devices)
    )
    if not decision.order:
        raise ToolUnavailableError("auto", f"no tool fills memory on {', '.join(devices)}", "load to the CPU")
    control = Control()
    request = ReadRequest(path, fd, size, extents, span, resident, control)
    attempts = Attempts(decision, f"load {path}", control=control)
    with under_way(lambda: _fill(request, attempts), control, nbytes) as job:
        moved = job.wait(progress)
    seconds = time.perf_counter() - started
    decision.learn(attempts.tool, seconds)
    transfer = Transfer(
        LOAD, path, form, attempts.tool, moved.route, attempts.reason, nbytes, seconds, False, False,
        (*attempts.notes, *moved.notes),
    )  # fmt: skip
    return transfer, moved.checksums or ()


def _fill(request: ReadRequest, attempts: Attempts) -> TransportResult:
    """Let the first tool that can do it fill the memory."""
    if not request.extents:
        return TransportResult("cached", ())

    def fill(tool: str) -> TransportResult:
        transport = registry.get(tool)
        return call_transport(functools.partial(transport.read, request), request)

    moved = attempts.run(fill)
    return moved if moved.checksums is not None else moved._replace(checksums=checksums.of_extents(request.extents))


def _check(path: str, source: Source, values: Sequence[int]) -> None:
    """Compare the CRCs of what was read with what the file says."""
    for region, value in zip(source.regions, values, strict=True):
        if value != region.crc:
            raise damaged(path, region)
