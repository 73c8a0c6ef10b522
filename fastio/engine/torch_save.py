"""Saves that torch does itself: which ones, and torch.save with an atomic file and checksums around it."""

from __future__ import annotations

import errno
import io
import os
import pickle
from typing import Any, NamedTuple

import torch

from fastio.engine import checksum_repair, sequential_write
from fastio.engine.background_job import Progress
from fastio.engine.progress import tell_end
from fastio.errors import TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT
from fastio.formats.pt import torch_probe
from fastio.formats.pt.view_clones import CloningPickle
from fastio.results import SaveResult, completed
from fastio.transports.transport import SAVE


class SaveCall(NamedTuple):
    """The arguments of one save. Without ``follow_link`` a symbolic link is replaced, not the file it points to."""

    obj: Any
    path: str
    file_format: str
    policy: Any
    durable: bool
    progress: Progress | None
    arguments: dict[str, Any]
    follow_link: bool = True


def torch_only(call: SaveCall) -> str:
    """Why torch must do this save; empty if it need not. Removes the arguments that only torch.save understands."""
    if call.file_format != PT:
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


def save_by_torch(call: SaveCall, started: float, why: str) -> SaveResult:
    """torch.save into a new file that replaces the old one in one step."""
    with AtomicFile(call.path, call.follow_link) as new:
        notes = fill_by_torch(call, new)
        nbytes = os.fstat(new.fd).st_size
        tell_end(call.progress, nbytes)
        new.commit(call.durable)
    return completed(
        SaveResult,
        SAVE,
        call.path,
        started,
        format=PT,
        tool="torch",
        route="library",
        reason=why,
        nbytes=nbytes,
        durable=call.durable,
        notes=notes,
    )


def fill_by_torch(call: SaveCall, new: AtomicFile) -> tuple[str, ...]:
    """Have torch.save write to the file that was created; return notes for the result."""
    new.file.seek(0)
    new.file.truncate()
    write_by_torch(call, new.file)
    zipped = call.arguments.get("_use_new_zipfile_serialization", True)
    if not zipped or torch.serialization._serialization_tls.skip_data:
        return ()  # the file has no checksums, or its data are still to be written
    return checksum_repair.reseal_archive(call.path, new.fd, os.fstat(new.fd).st_size)


def write_by_torch(call: SaveCall, file: io.FileIO) -> None:
    """torch.save to an open file.

    torch opens the file again, by a name that no other file can have: if its writes to a file object are interrupted,
    it raises errors of its own.
    """
    name = f"/proc/self/fd/{file.fileno()}"
    try:
        if os.path.exists(name):
            torch.serialization.save(call.obj, name, **call.arguments)
        else:
            sequential_write.write_by_torch(call.obj, file, call.path, call.arguments)
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise  # raised by the object that is saved
        raise TransferError(_errno_of_writer(name, file.fileno()), "torch.save", call.path) from error


def _errno_of_writer(name: str, fd: int) -> int:
    """Return why torch's writer failed, which does not tell: it could not open the file, or the disk is full."""
    try:
        io.FileIO(name, "rb").close()
    except OSError as error:
        return error.errno or errno.EIO
    return errno.EIO if os.fstatvfs(fd).f_bavail else errno.ENOSPC
