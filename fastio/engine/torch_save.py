"""Saves that torch does itself: torch.save with an atomic file and checksums around it."""

from __future__ import annotations

import errno
import io
import os

import torch

from fastio.engine import checksum_repair, sequential_write
from fastio.engine.background_job import Progress
from fastio.engine.plan import SaveRequest, TorchSave
from fastio.engine.progress import tell_end
from fastio.errors import TransferError
from fastio.files.atomic_file import AtomicFile
from fastio.formats.detect import PT
from fastio.results import SaveResult, completed
from fastio.transports.transport import SAVE


def save_by_torch(plan: TorchSave, started: float, progress: Progress | None) -> SaveResult:
    """torch.save into a new file that replaces the old one in one step."""
    request = plan.request
    with AtomicFile(request.path, request.follow_link) as new:
        notes = fill_by_torch(request, new)
        nbytes = os.fstat(new.fd).st_size
        tell_end(progress, nbytes)
        new.commit(request.durable)
    return completed(
        SaveResult,
        SAVE,
        request.path,
        started,
        format=PT,
        tool="torch",
        route="library",
        reason=plan.why,
        nbytes=nbytes,
        durable=request.durable,
        notes=notes,
    )


def fill_by_torch(request: SaveRequest, new: AtomicFile) -> tuple[str, ...]:
    """Have torch.save write to the file that was created; return notes for the result."""
    new.file.seek(0)
    new.file.truncate()
    write_by_torch(request, new.file)
    zipped = request.arguments.get("_use_new_zipfile_serialization", True)
    if not zipped or torch.serialization._serialization_tls.skip_data:
        return ()  # the file has no checksums, or its data are still to be written
    return checksum_repair.reseal_archive(request.path, new.fd, os.fstat(new.fd).st_size)


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
            sequential_write.write_by_torch(request.obj, file, request.path, request.arguments)
    except RuntimeError as error:
        if "PytorchStreamWriter" not in str(error) and "inline_container" not in str(error):
            raise  # raised by the object that is saved
        raise TransferError(_errno_of_writer(name, file.fileno()), "torch.save", request.path) from error


def _errno_of_writer(name: str, fd: int) -> int:
    """Return why torch's writer failed, which does not tell: it could not open the file, or the disk is full."""
    try:
        io.FileIO(name, "rb").close()
    except OSError as error:
        return error.errno or errno.EIO
    return errno.EIO if os.fstatvfs(fd).f_bavail else errno.ENOSPC
