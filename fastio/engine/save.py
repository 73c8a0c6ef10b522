"""Saving to a file: lay out, choose a tool, fill a temporary file, put it in place."""

from __future__ import annotations

import errno
import io
import os
import pickle
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from fastio import formats
from fastio._native import Control
from fastio.engine import candidates, checksum_repair, checksums, sequential_write
from fastio.engine.background_job import Progress, under_way
from fastio.engine.contiguous_chunks import write_packed
from fastio.engine.executor import Attempts
from fastio.engine.progress import tell_end
from fastio.engine.tool_selection import checksumming_tools, decide
from fastio.engine.transport_errors import call_transport
from fastio.errors import ToolUnavailableError, TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.files.save_target import in_place
from fastio.formats.detect import PT
from fastio.formats.layout import Layout
from fastio.formats.pt import torch_probe, writer
from fastio.formats.pt.view_clones import CloningPickle
from fastio.results import SaveResult
from fastio.transports import registry
from fastio.transports.transport import SAVE, TransportResult, WriteRequest


class NewFile(Protocol):
    """A file that is being made, empty and open for reading and writing; nobody sees it before it is committed."""

    path: str

    @property
    def fd(self) -> int: ...

    def allocate(self, nbytes: int) -> None:
        """Set the size and reserve the blocks. TransferError if the system refuses."""

    def commit(self, durable: bool) -> None:
        """It is whole. With ``durable``, it survives a power cut once this returns. TransferError, if it does not."""


class SaveCall(NamedTuple):
    """The arguments of one save. Without ``follow_link`` a symbolic link is replaced, and not the file behind it."""

    obj: Any
    path: str
    form: str
    policy: Any
    durable: bool
    progress: Progress | None
    arguments: dict[str, Any]
    follow_link: bool = True


def save_file(call: SaveCall) -> SaveResult:
    """Save to a path: the whole old file or the whole new one is there at any time."""
    started = time.perf_counter()
    why = in_place(call.path)
    if why:
        return _save_in_place(call, started, why)
    why = _torch_only(call)
    if why:
        return _save_by_torch(call, started, why)
    layout = _lay_out(call)
    devices = layout.devices or frozenset({"cpu"})
    parts = len(layout.extents) + len(layout.strided)
    context = candidates.save_context(call.form, devices, call.durable, layout.payload, parts // 2)
    decision = decide(call.policy, SAVE, call.form, devices, context, layout.payload, os.path.dirname(call.path))
    if not decision.order:
        why = f"no tool writes {call.form} from memory on {', '.join(devices)}"
        if call.form != PT:
            raise ToolUnavailableError("auto", why, "move the tensors to the CPU first")
        return _save_by_torch(call, started, why)
    attempts = Attempts(decision, f"save {call.path}")
    with AtomicFile(call.path, call.follow_link) as new:
        moved = attempts.run(lambda tool: _fill_by(tool, call, layout, new), lambda: os.ftruncate(new.fd, 0))
        new.commit(call.durable)
    seconds = time.perf_counter() - started
    decision.learn(attempts.tool, seconds)
    verified = call.form == PT and (moved.route != "library" or torch.serialization.get_crc32_options())
    return SaveResult(
        SAVE, call.path, call.form, attempts.tool, moved.route, attempts.reason, layout.payload, seconds, call.durable,
        verified, (*attempts.notes, *moved.notes),
    )  # fmt: skip


def save_layout(
    layout: Layout, path: str, policy: Any, progress: Progress | None, still: bool = False
) -> tuple[SaveResult, Sequence[int]]:
    """Write a file of a layout to a path, durably; gives also a CRC-32 for each extent that asks for one."""
    with AtomicFile(path) as new:
        return write_layout(layout, new, PT, policy, True, progress, still)


def write_layout(
    layout: Layout,
    new: NewFile,
    form: str,
    policy: Any,
    durable: bool,
    progress: Progress | None,
    still: bool = False,
) -> tuple[SaveResult, Sequence[int]]:
    """Fill a new file with a layout, and commit it; gives also a CRC-32 for each extent that asks for one.

    ``form`` is what dictionaries and the result call the file's format. ``still``: nobody changes the storages
    meanwhile, as a caller might with his own.
    """
    started = time.perf_counter()
    devices = layout.devices or frozenset({"cpu"})
    context = candidates.save_context(form, devices, durable, layout.payload, len(layout.extents) // 2)
    folder = os.path.dirname(new.path)
    decision = decide(policy, SAVE, form, devices, context, layout.payload, folder, checksumming_tools(SAVE, devices))
    if not decision.order:
        raise ToolUnavailableError("auto", f"no tool writes from memory on {', '.join(devices)}", "save on the CPU")
    attempts = Attempts(decision, f"save {new.path}")
    moved, values = attempts.run(
        lambda tool: _fill_extents(tool, layout, new, durable, progress, still), lambda: os.ftruncate(new.fd, 0)
    )
    new.commit(durable)
    seconds = time.perf_counter() - started
    decision.learn(attempts.tool, seconds)
    notes = (*attempts.notes, *moved.notes)
    result = SaveResult(
        SAVE, new.path, form, attempts.tool, moved.route, attempts.reason, layout.payload, seconds, durable, True, notes
    )
    return result, values


def _lay_out(call: SaveCall) -> Layout:
    if call.form == PT:
        for name in call.arguments.keys() - writer.ARGUMENTS:
            raise TypeError(f"save() got an unexpected keyword argument {name!r}")  # in torch's words
        return writer.layout(call.obj, call.path, **call.arguments)
    return formats.lay_out(call.form, call.obj, call.path, call.arguments)


def _torch_only(call: SaveCall) -> str:
    """Why this call is torch's own; empty if it is not."""
    if call.form != PT:
        return ""
    if not call.arguments.get("_use_new_zipfile_serialization", True):
        return "the legacy format was asked for"
    module = call.arguments.get("pickle_module")
    if module is not None and not (isinstance(module, CloningPickle) and module.module is pickle):
        return "a pickle module was given"
    if torch_probe.unsupported_reason():
        return torch_probe.unsupported_reason()
    if torch.serialization._serialization_tls.skip_data:
        return "the call is inside skip_data()"
    call.arguments.pop("_use_new_zipfile_serialization", None)
    if module is None:
        call.arguments.pop("pickle_module", None)
    return ""


def _save_in_place(call: SaveCall, started: float, why: str) -> SaveResult:
    """Write to what cannot be replaced: a device, a pipe, an open file that was removed."""
    notes = (f"not durable: {why}",) if call.durable else ()
    layout = None if call.form == PT else _lay_out(call)  # first: what cannot be saved must not empty the file
    nbytes, tool, route = (0, "torch", "library") if layout is None else (layout.payload, "memory", "stream")
    try:
        file = io.FileIO(call.path, "wb")
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "open", call.path) from error
    with file:
        if layout is None:
            _write_by_torch(call, file)
        else:
            sequential_write.write(layout, sequential_write.whole(file, call.path))
    tell_end(call.progress, nbytes)
    seconds = time.perf_counter() - started
    return SaveResult(SAVE, call.path, call.form, tool, route, why, nbytes, seconds, False, False, notes)


def _save_by_torch(call: SaveCall, started: float, why: str) -> SaveResult:
    with AtomicFile(call.path, call.follow_link) as new:
        notes = _torch_save(call, new)
        nbytes = os.fstat(new.fd).st_size
        tell_end(call.progress, nbytes)
        new.commit(call.durable)
    seconds = time.perf_counter() - started
    return SaveResult(SAVE, call.path, PT, "torch", "library", why, nbytes, seconds, call.durable, False, notes)


def _torch_save(call: SaveCall, new: AtomicFile) -> tuple[str, ...]:
    """torch.save itself, to the very file that was created; gives notes."""
    new.file.seek(0)
    new.file.truncate()
    _write_by_torch(call, new.file)
    zipped = call.arguments.get("_use_new_zipfile_serialization", True)
    if not zipped or torch.serialization._serialization_tls.skip_data:
        return ()  # there are no checksums, or what they are of is still to come
    return checksum_repair.reseal_archive(call.path, new.fd, os.fstat(new.fd).st_size)


def _write_by_torch(call: SaveCall, file: io.FileIO) -> None:
    """torch.save to an open file.

    torch opens it again, by a name that no other file can have: writes to a file object, interrupted, are errors of
    torch's own. Its writer says that a write failed, not why: the room on the disk tells.
    """
    name = f"/proc/self/fd/{file.fileno()}"
    try:
        if os.path.exists(name):
            torch.serialization.save(call.obj, name, **call.arguments)
        else:
            sequential_write.write_by_torch(call.obj, file, call.path, call.arguments)
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise  # the program's own
        room = os.fstatvfs(file.fileno()).f_bavail
        raise TransferError(errno.EIO if room else errno.ENOSPC, "torch.save", call.path) from error


def _fill_by(tool: str, call: SaveCall, layout: Layout, new: AtomicFile) -> TransportResult:
    if call.form in registry.get(tool).capabilities.whole:
        new.allocate(layout.size)  # torch starts the file anew; a full disk shows here, with its errno
        notes = _torch_save(call, new)
        tell_end(call.progress, layout.size)
        return TransportResult("library", notes=notes)
    return _fill_extents(tool, layout, new, call.durable, call.progress)[0]


def _fill_extents(
    tool: str, layout: Layout, new: NewFile, durable: bool, progress: Progress | None, still: bool = False
) -> tuple[TransportResult, Sequence[int]]:
    """Let a transport fill the new file; gives also the CRCs of the extents that ask for one."""
    transport = registry.get(tool)
    new.allocate(layout.size)
    control = Control()
    control.still = still
    patches: Sequence[Any] = layout.patches
    values: list[int] | None = None
    if not transport.capabilities.checksums:
        layout.settle()
        values = checksums.seal(layout)
        patches = ()
    request = WriteRequest(new.path, new.fd, layout.size, layout.extents, patches, durable, control)

    def write() -> TransportResult:
        moved = call_transport(
            lambda: transport.write(request), request
        )  # first: it may put zeros where it has nothing
        notes = write_packed(layout.strided, new.path, new.fd, control)
        return moved._replace(notes=(*moved.notes, *notes))

    with under_way(write, control, layout.size) as job:
        moved = job.wait(progress)
    if values is None:
        return moved, moved.checksums or ()
    if still or not layout.devices <= {"cpu"}:
        return moved, values  # to read back what went straight to the disk would cost as much as the save
    notes = checksum_repair.reseal(layout, values, new.path, new.fd)
    return moved._replace(notes=(*moved.notes, *notes)), values
