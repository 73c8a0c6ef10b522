"""Saving to a file: lay out, choose a tool, fill a temporary file, replace the old file with it."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch

from fastio import formats
from fastio._native import Control
from fastio.engine import checksum_repair, checksums, header_digests, sequential_write
from fastio.engine.background_job import Progress, under_way
from fastio.engine.contiguous_chunks import Packed, write_packed
from fastio.engine.executor import Execution
from fastio.engine.operation import Operation
from fastio.engine.progress import tell_end
from fastio.engine.tool_selection import checksumming_tools
from fastio.engine.torch_save import SaveCall, fill_by_torch, save_by_torch, torch_only, write_by_torch
from fastio.engine.transport_errors import call_transport
from fastio.errors import ToolUnavailableError, TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.files.save_target import in_place_reason
from fastio.formats.detect import PT, SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.pt import writer
from fastio.results import SaveResult, completed
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


def save_file(call: SaveCall) -> SaveResult:
    """Save to a path, which holds the whole old file or the whole new one at any time."""
    started = time.perf_counter()
    why = in_place_reason(call.path)
    if why:
        return _save_in_place(call, started, why)
    why = torch_only(call)
    if why:
        return save_by_torch(call, started, why)
    layout = _lay_out(call)
    devices = layout.devices or _CPU
    with_crcs = torch.serialization.get_crc32_options()
    execution = Execution(
        Operation(
            SAVE, call.path, call.file_format, devices, layout.payload,
            (len(layout.extents) + len(layout.strided)) // 2, call.policy, started, call.durable, device=layout.device,
            # Without CRCs torch's own save is used only if it was asked for by name.
            among=None if call.file_format != PT or with_crcs else checksumming_tools(SAVE, devices),
        )
    )  # fmt: skip
    if not execution.tool:
        why = f"no tool writes {call.file_format} from memory on {', '.join(devices)}"
        if call.file_format != PT:
            raise ToolUnavailableError("auto", why, "move the tensors to the CPU first")
        return save_by_torch(call, started, why)
    with AtomicFile(call.path, call.follow_link) as new:
        moved = execution.run(lambda tool: _fill_by(tool, call, layout, new), lambda: os.ftruncate(new.fd, 0))
        if (
            call.file_format == SAFETENSORS
        ):  # before the commit: a sidecar must never be beside a file that is not its own
            moved = moved._replace(notes=(*moved.notes, *remove_old_checksums(call.path)))
        new.commit(call.durable)
    checksummed = moved.route != "library" or with_crcs
    return execution.saved(moved, verified=checksummed if call.file_format == PT else bool(layout.digests))


def remove_old_checksums(path: str) -> tuple[str, ...]:
    """Remove the old file's sidecar. Returns notes."""
    from fastio.formats.safetensors import sidecar  # not needed by all saves

    name = sidecar.name_of(path)
    try:
        os.unlink(name)
    except FileNotFoundError:
        return ()
    except OSError as error:
        return (f"{name}, which has checksums of the old file, could not be removed: {error.strerror}",)
    return (f"{name}, which had checksums of the old file, was removed",)


def save_layout(
    layout: Layout, path: str, policy: Any, progress: Progress | None, still: bool = False
) -> tuple[SaveResult, Sequence[int]]:
    """Write a ``.pt`` file of a layout to a path, durably; return also a CRC-32 for each extent that asks for one."""
    with AtomicFile(path) as new:
        return write_layout(layout, new, PT, policy, True, progress, still)


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
    devices = layout.devices or _CPU
    execution = Execution(
        Operation(
            SAVE, new.path, file_format, devices, layout.payload, len(layout.extents) // 2, policy, started, durable,
            device=layout.device, among=checksumming_tools(SAVE, devices),
        )
    )  # fmt: skip
    if not execution.tool:
        raise ToolUnavailableError("auto", f"no tool writes from memory on {', '.join(devices)}", "save on the CPU")
    moved, values = execution.run(
        lambda tool: _fill(tool, layout, new, durable, progress, still), lambda: os.ftruncate(new.fd, 0)
    )
    new.commit(durable)
    return execution.saved(moved), values


def _lay_out(call: SaveCall) -> Layout:
    if call.file_format == PT:
        for name in call.arguments.keys() - writer.ARGUMENTS:
            raise TypeError(f"save() got an unexpected keyword argument {name!r}")  # in torch's words
        return writer.layout(call.obj, call.path, **call.arguments)
    return formats.lay_out(call.file_format, call.obj, call.path, call.arguments)


def _save_in_place(call: SaveCall, started: float, why: str) -> SaveResult:
    """Write to a file that cannot be replaced: a device, a pipe, an open file that was removed."""
    layout = None if call.file_format == PT else _lay_out(call)  # first: an object that is refused empties no file
    try:
        file = io.FileIO(call.path, "wb")
    except OSError as error:
        raise TransferError(error.errno or errno.EIO, "open", call.path) from error
    with file:
        if layout is None:
            write_by_torch(call, file)
        else:
            sequential_write.write(layout, sequential_write.whole(file, call.path), call.path)
    nbytes = 0 if layout is None else layout.payload
    tell_end(call.progress, nbytes)
    result = completed(
        SaveResult,
        SAVE,
        call.path,
        started,
        format=call.file_format,
        tool="torch" if layout is None else "memory",
        route="library" if layout is None else "stream",
        reason=why,
        nbytes=nbytes,
        notes=(f"not durable: {why}",) if call.durable else (),
    )
    return replace(result, verified=layout is not None and bool(layout.digests))


def _fill_by(tool: str, call: SaveCall, layout: Layout, new: AtomicFile) -> TransportResult:
    if call.file_format in registry.get(tool).capabilities.whole:
        new.allocate(layout.size)  # torch starts the file anew; a full disk shows here, with its errno
        notes = fill_by_torch(call, new)
        tell_end(call.progress, layout.size)
        return TransportResult("library", notes=notes)
    return _fill(tool, layout, new, call.durable, call.progress)[0]


def _fill(
    tool: str, layout: Layout, new: NewFile, durable: bool, progress: Progress | None, still: bool = False
) -> tuple[TransportResult, Sequence[int]]:
    """Have a transport fill the new file; return also the CRCs of the extents that ask for one."""
    new.allocate(layout.size)
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
            notes += checksum_repair.reseal(layout, sealed.values, new.path, new.fd)
    if layout.digests:
        crcs = {extent.offset: crc for extent, crc in zip(layout.extents, values, strict=True)} | packed.checksums
        header_digests.write_after(layout, crcs, new.path, new.fd)
    return moved._replace(notes=(*moved.notes, *notes)), values
