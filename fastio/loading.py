"""Loading from a file: find what is where, start the reads, unpickle meanwhile, check, hand over."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from fastio import checksums, formats, plan, registry
from fastio._native import Control
from fastio.attempts import Attempts
from fastio.choosing import Decision, candidates, decide, movers
from fastio.collector import held_back
from fastio.errors import CorruptFileError, FastIOError, ToolUnavailableError, UnsupportedError
from fastio.formats import pt_source
from fastio.formats.pt_globals import moves_storages
from fastio.formats.pt_load import NotPlainError, damaged
from fastio.formats.reading import head
from fastio.formats.sense import HEAD_BYTES, PT, SAFETENSORS, sense
from fastio.formats.source import Source, Wait
from fastio.job import WORTH_A_THREAD, Progress, under_way
from fastio.landing import Landing, land
from fastio.native_errors import named
from fastio.opening import opened
from fastio.outcome import Transfer
from fastio.refusals import asked
from fastio.torch_loading import (
    UNSEALED,
    LoadCall,
    device_named,
    given_arguments,
    load_by_torch,
    torch_only,
    without_ignored,
)
from fastio.transport import LOAD, Extent, Moved, ReadRequest, Span, is_resident


class _AssumedWrongError(Exception):
    """The layout derived from the zip directory is not the file's: it must be read header by header."""


def load_file(call: LoadCall) -> tuple[Any, Transfer]:
    """Load from a path; the object is whole and checked when it is returned."""
    started = time.perf_counter()
    with opened(call.path) as (fd, size):
        return load_open(call, fd, size, sense(head(call.path, fd, size, HEAD_BYTES), call.path), started)


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
        try:
            return _load_in_place(call, fd, size, form or PT, started, careful=False)
        except _AssumedWrongError:
            return _load_in_place(call, fd, size, form or PT, started, careful=True)
    except NotPlainError as reason:
        return load_by_torch(call, fd, size, form, started, str(reason))
    except pickle.UnpicklingError:
        if not call.weights_only:
            raise
        # torch.load words this error, with its advice to the user: let it do so.
        return load_by_torch(call, fd, size, form, started, "the unpickler refused the object")


def _target(call: LoadCall, form: str) -> torch.device | None:
    """The device that storages are loaded onto at once; None where torch must be given filled CPU storages to move."""
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
    if where is None:
        return torch.device("cpu") if form != PT or not moves_storages() else None
    if form != PT:
        kind = "a dict" if isinstance(where, dict) else "a function" if callable(where) else f"the {where!r}"
        raise UnsupportedError(f"{call.path}: map_location as {kind} is for .pt files; name a device for .{form}")
    return None


def _is_filled(kind: str, form: str) -> bool:
    """Whether some tool here can fill memory of that kind with what such a file holds."""
    return kind == "cpu" or (registry.is_here(kind) and bool(candidates(LOAD, form, frozenset({kind}))[0]))


def _open_source(call: LoadCall, fd: int, size: int, form: str, careful: bool) -> Source:
    if form == PT:
        return pt_source.source(
            call.path, fd, size, call.map_location, call.weights_only, call.verify, careful, dict(call.arguments)
        )
    given = given_arguments(call)
    if given:
        raise TypeError(f"{call.path}: .{form} takes none of torch.load's arguments, got {', '.join(given)}")
    source: Source = formats.module(form).source(call.path, fd, size)
    return source


def _load_in_place(
    call: LoadCall, fd: int, size: int, form: str, started: float, careful: bool
) -> tuple[Any, Transfer]:
    with held_back():
        return _load_held_back(call, fd, size, form, started, careful)


def _load_held_back(
    call: LoadCall, fd: int, size: int, form: str, started: float, careful: bool
) -> tuple[Any, Transfer]:
    target = _target(call, form)
    source = _open_source(call, fd, size, form, careful)
    device = target or torch.device("cpu")
    with named(call.path):
        resident = is_resident(fd, size)
    devices = frozenset({device.type})
    context = plan.load_context(form, devices, resident, source.nbytes, len(source.regions))
    decision = decide(call.policy, LOAD, form, devices, context, source.nbytes, os.path.dirname(call.path))
    if not decision.order:
        return load_by_torch(call, fd, size, form, started, f"no tool fills memory on {device}")
    if form in _whole(decision.order[0]):
        return _load_whole(call, fd, size, form, started, decision, source.nbytes)
    landing = land(call.path, source.regions, device, call.verify and source.checksummed, source.aligned)
    control = Control()
    attempts = Attempts(decision, f"load {call.path}", control=control)
    request = ReadRequest(call.path, fd, size, landing.extents, landing.span, resident, control)
    with (
        _started(request, attempts.tool, source.nbytes) as finish,
        under_way(lambda: _fill(request, attempts, finish), control, source.nbytes) as job,
    ):

        def whole() -> tuple[Moved, bool]:
            moved = job.wait(call.progress)
            return moved, _check(call, source, landing, moved)

        if target is None:
            whole()  # the caller's map_location looks at, or copies, each storage as it gets it
        obj = _build(call, source, landing, whole)
        moved, verified = whole()
    seconds = time.perf_counter() - started
    decision.learn(attempts.tool, seconds)
    unsealed = (UNSEALED,) if call.verify and not verified else ()
    transfer = Transfer(
        LOAD, call.path, form, attempts.tool, moved.route, attempts.reason, source.nbytes, seconds, False, verified,
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


def _build(call: LoadCall, source: Source, landing: Landing, wait: Wait) -> Any:
    if source.format == PT:
        return source.build(landing.storage, wait)
    try:
        return source.build(landing.storage, wait)
    except (RuntimeError, OverflowError, ValueError, TypeError) as error:  # torch's versions differ in which they raise
        if isinstance(error, FastIOError):
            raise
        said = str(error).partition("\n")[0]  # what follows are frames of torch's C++
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
    ``span`` is as in :class:`fastio.transport.ReadRequest`. Their memory may have changed when an error is raised.
    """
    started = time.perf_counter()
    nbytes = sum(extent.nbytes for extent in extents)
    with named(path):
        resident = is_resident(fd, size)
    devices = frozenset(extent.device for extent in extents) or frozenset({"cpu"})
    context = plan.load_context(form, devices, resident, nbytes, len(extents))
    decision = decide(policy, LOAD, form, devices, context, nbytes, os.path.dirname(path), movers(LOAD, devices))
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


@contextlib.contextmanager
def _started(request: ReadRequest, tool: str, nbytes: int) -> Iterator[Callable[[], Moved] | None]:
    """A read that is too small for a thread, under way by its device if the tool can do that; and what finishes it."""
    transport: Any = registry.find(tool).transport
    if nbytes >= WORTH_A_THREAD or not request.extents or transport is None or not transport.capabilities.starts:
        yield None
        return
    with contextlib.ExitStack() as under_way:
        try:
            finish = under_way.enter_context(transport.start(request))
        except Exception:
            finish = None  # it will fail at the whole of it too, where that is dealt with
        yield finish


def _fill(request: ReadRequest, attempts: Attempts, finish: Callable[[], Moved] | None = None) -> Moved:
    """Let the first tool that can do it fill the memory; ``finish`` is what it was begun with, if it was."""
    if not request.extents:
        return Moved("cached", ())
    begun = [finish] if finish is not None else []

    def fill(tool: str) -> Moved:
        transport = registry.get(tool)
        return asked(begun.pop() if begun else functools.partial(transport.read, request), request)

    moved = attempts.run(fill)
    return moved if moved.checksums is not None else moved._replace(checksums=checksums.of_extents(request.extents))


def _check(call: LoadCall, source: Source, landing: Landing, moved: Moved) -> bool:
    """Compare what was read with what the file says of itself; gives whether every byte was checked."""
    if source.confirm is not None and landing.span is not None and not source.confirm(landing.span):
        raise _AssumedWrongError
    if not (call.verify and source.checksummed):
        return False
    for region, value in zip(source.regions, moved.checksums or (), strict=True):
        if value != region.crc:
            raise damaged(call.path, region)
    return True
