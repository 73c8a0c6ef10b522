"""Saving to a file: lay out, choose a tool, fill a temporary file, put it in place."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from fastio import checksums, formats, plan, registry
from fastio._native import Control
from fastio.choosing import Decision, decide, movers
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.formats import probe, pt_save
from fastio.formats.layout import Layout
from fastio.formats.sense import PT
from fastio.job import Job, Progress
from fastio.outcome import SaveResult
from fastio.replacement import Replacement
from fastio.transport import SAVE, Moved, WriteRequest

_Filled = TypeVar("_Filled")


class SaveCall(NamedTuple):
    """The arguments of one save."""

    obj: Any
    path: str
    form: str
    policy: Any
    durable: bool
    progress: Progress | None
    arguments: dict[str, Any]


def save_file(call: SaveCall) -> SaveResult:
    """Save to a path: the whole old file or the whole new one is there at any time."""
    started = time.perf_counter()
    why = _torch_only(call)
    if why is not None:
        return _save_by_torch(call, started, why)
    layout = _lay_out(call)
    devices = layout.devices or frozenset({"cpu"})
    context = plan.save_context(call.form, devices, call.durable, layout.payload, len(layout.extents) // 2)
    decision = decide(call.policy, SAVE, call.form, devices, context, layout.payload, os.path.dirname(call.path))
    if not decision.order:
        why = f"no tool writes {call.form} from memory on {', '.join(devices)}"
        if call.form != PT:
            raise ToolUnavailableError("auto", why, "move the tensors to the CPU first")
        return _save_by_torch(call, started, why)
    fallbacks = list(decision.missing)
    with Replacement(call.path) as new:
        tool, moved = _fill(lambda tool: _fill_by(tool, call, layout, new), new, decision, fallbacks)
        new.commit(call.durable)
    seconds = time.perf_counter() - started
    decision.learn(tool, seconds)
    verified = call.form == PT and (moved.route != "library" or torch.serialization.get_crc32_options())
    reason = decision.reason if tool == decision.order[0] else f"{decision.order[0]} could not"
    return SaveResult(
        SAVE, call.path, call.form, tool, moved.route, reason, layout.payload, seconds, call.durable, verified,
        (*fallbacks, *moved.notes),
    )  # fmt: skip


def save_layout(layout: Layout, path: str, policy: Any, progress: Progress | None) -> tuple[SaveResult, Sequence[int]]:
    """Write a file of a layout to a path, durably; gives also a CRC-32 for each extent that asks for one."""
    started = time.perf_counter()
    devices = layout.devices or frozenset({"cpu"})
    context = plan.save_context(PT, devices, True, layout.payload, len(layout.extents) // 2)
    decision = decide(policy, SAVE, PT, devices, context, layout.payload, os.path.dirname(path), movers(SAVE, devices))
    if not decision.order:
        raise ToolUnavailableError("auto", f"no tool writes from memory on {', '.join(devices)}", "save on the CPU")
    fallbacks = list(decision.missing)
    with Replacement(path) as new:
        tool, (moved, values) = _fill(
            lambda tool: _fill_extents(tool, path, layout, new, True, progress), new, decision, fallbacks
        )
        new.commit(durable=True)
    seconds = time.perf_counter() - started
    decision.learn(tool, seconds)
    reason = decision.reason if tool == decision.order[0] else f"{decision.order[0]} could not"
    notes = (*fallbacks, *moved.notes)
    result = SaveResult(SAVE, path, PT, tool, moved.route, reason, layout.payload, seconds, True, True, notes)
    return result, values


def _lay_out(call: SaveCall) -> Layout:
    if call.form == PT:
        return pt_save.layout(call.obj, call.path, **call.arguments)
    return formats.lay_out(call.form, call.obj, call.path, call.arguments)


def _torch_only(call: SaveCall) -> str | None:
    """Why this call is torch's own, if it is."""
    if call.form != PT:
        return None
    if _is_special(call.path):
        return "the path is no regular file"
    if not call.arguments.get("_use_new_zipfile_serialization", True):
        return "the legacy format was asked for"
    if call.arguments.get("pickle_module") is not None:
        return "a pickle module was given"
    if probe.why_not():
        return probe.why_not()
    if torch.serialization._serialization_tls.skip_data:
        return "the call is inside skip_data()"
    call.arguments.pop("_use_new_zipfile_serialization", None)
    call.arguments.pop("pickle_module", None)
    return None


def _is_special(path: str) -> bool:
    """A device, a pipe, a socket: it is written to, never replaced."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def _save_by_torch(call: SaveCall, started: float, why: str) -> SaveResult:
    if _is_special(call.path):
        torch.serialization.save(call.obj, call.path, **call.arguments)
        nbytes = 0
    else:
        with Replacement(call.path) as new:
            _torch_save(call, new)
            nbytes = os.fstat(new.fd).st_size
            new.commit(call.durable)
    seconds = time.perf_counter() - started
    return SaveResult(SAVE, call.path, PT, "torch", "library", why, nbytes, seconds, call.durable, False)


def _torch_save(call: SaveCall, new: Replacement) -> None:
    """torch.save itself. Its writer says that a write failed, not why: the room on the disk tells."""
    try:
        torch.serialization.save(call.obj, new.temporary, **call.arguments)
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise
        room = os.statvfs(os.path.dirname(new.temporary)).f_bavail
        raise TransferError(errno.EIO if room else errno.ENOSPC, "torch.save", call.path) from error


def _fill(
    fill_by: Callable[[str], _Filled], new: Replacement, decision: Decision, fallbacks: list[str]
) -> tuple[str, _Filled]:
    """Let the first tool that can do it fill the new file."""
    for tool in decision.order:
        try:
            return tool, fill_by(tool)
        except (RefusedError, ToolUnavailableError) as error:
            if decision.fixed and isinstance(error, ToolUnavailableError):
                raise
            fallbacks.append(f"{tool}: {error}")
            decision.fail(tool, str(error))
            os.ftruncate(new.fd, 0)
    raise RefusedError(f"no tool could save {new.path}: " + "; ".join(fallbacks))


def _fill_by(tool: str, call: SaveCall, layout: Layout, new: Replacement) -> Moved:
    if call.form in registry.get(tool).capabilities.whole:
        new.allocate(layout.size)  # torch starts the file anew; a full disk shows here, with its errno
        _torch_save(call, new)
        return Moved("library")
    return _fill_extents(tool, call.path, layout, new, call.durable, call.progress)[0]


def _fill_extents(
    tool: str, path: str, layout: Layout, new: Replacement, durable: bool, progress: Progress | None
) -> tuple[Moved, Sequence[int]]:
    """Let a transport fill the new file; gives also the CRCs of the extents that ask for one."""
    transport = registry.get(tool)
    new.allocate(layout.size)
    patches: Sequence[Any] = layout.patches
    values: Sequence[int] | None = None
    if not transport.capabilities.checksums:
        values = checksums.seal(layout)
        patches = ()
    control = Control()
    request = WriteRequest(path, new.fd, layout.size, layout.extents, patches, durable, control)
    with Job(lambda: transport.write(request), control, layout.size) as job:
        moved = job.wait(progress)
    return moved, values if values is not None else moved.checksums or ()
