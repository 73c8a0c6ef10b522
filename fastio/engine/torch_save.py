"""Saves that torch does itself: torch.save with an atomic file and checksums around it."""

from __future__ import annotations

import errno
import io
import os
import time
from typing import Any

import torch

from fastio.engine.background_job import Progress, tell_end
from fastio.engine.executor import result_of
from fastio.engine.plan import SaveRequest, TorchSave
from fastio.engine.record_checksums import reseal_archive
from fastio.errors import TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.files.full_write import whole_writes
from fastio.formats.detect import PT
from fastio.formats.pt import torch_settings
from fastio.results import Transfer
from fastio.transports.transport import SAVE, TransportResult
from fastio.volumes.object_file import StagedObject


def save_by_torch(
    plan: TorchSave, new: AtomicFile | StagedObject, started: float, progress: Progress | None
) -> Transfer:
    """torch.save into a new file, which is committed."""
    request = plan.request
    notes = fill_by_torch(request, new)
    nbytes = os.fstat(new.fd).st_size
    tell_end(progress, nbytes)
    new.commit(request.durable)
    moved, seconds = TransportResult("library", notes=notes), time.perf_counter() - started
    return result_of(SAVE, request.path, PT, "torch", moved, plan.why, nbytes, seconds, request.durable)


def fill_by_torch(request: SaveRequest, new: AtomicFile | StagedObject) -> tuple[str, ...]:
    """Have torch.save write to the file that was created; return notes for the result."""
    new.file.seek(0)
    new.file.truncate()
    write_by_torch(request, new.file)
    zipped = request.arguments.get("_use_new_zipfile_serialization", True)
    if not zipped or torch_settings.skips_data():
        return ()  # the file has no checksums, or its data are still to be written
    return reseal_archive(request.path, new.fd, os.fstat(new.fd).st_size)


def write_by_torch(request: SaveRequest, file: io.FileIO) -> None:
    """torch.save to an open file.

    torch opens the file again, by a name that no other file can have: if its writes to a file object are interrupted,
    it raises errors of its own.
    """
    name = f"/proc/self/fd/{file.fileno()}"
    try:
        if os.path.exists(name):
            torch.serialization.save(request.obj, name, **request.arguments)
        else:
            write_to_object(request, whole_writes(file, request.path))
    except RuntimeError as error:
        if os.strerror(errno.ENOSPC) in str(error):  # the legacy format's writer tells
            raise TransferError(errno.ENOSPC, "torch.save", request.path) from error
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise  # raised by the object that is saved
        raise TransferError(_errno_of_writer(name, file.fileno()), "torch.save", request.path) from error


def write_to_object(request: SaveRequest, f: Any) -> None:
    """torch.save to a file object whose ``write`` writes everything, at its position."""
    try:
        torch.serialization.save(request.obj, f, **request.arguments)
    except RuntimeError as error:
        # After a write failed or was interrupted, torch ends the archive, and reports only that this failed too.
        before = error.__context__
        if isinstance(before, TransferError) or not isinstance(before, Exception | None):
            raise before from None
        raise


def _errno_of_writer(name: str, fd: int) -> int:
    """Return why torch's writer failed, which does not tell: it could not open the file, or the disk is full."""
    try:
        io.FileIO(name, "rb").close()
    except OSError as error:
        return error.errno or errno.EIO
    return errno.EIO if os.fstatvfs(fd).f_bavail else errno.ENOSPC
