"""Loads that torch does itself: torch.load, with a check of the file before it."""

from __future__ import annotations

import os
from typing import Any

import torch

from fastio.engine.background_job import Progress
from fastio.engine.load_plan import is_mapped
from fastio.engine.plan import LoadRequest, TorchLoad
from fastio.engine.progress import tell_end
from fastio.engine.record_checksums import verify_archive
from fastio.formats.detect import PT
from fastio.formats.key_selection import pick
from fastio.formats.pt.reader import NeedsTorchError, open_archive
from fastio.results import Transfer, completed
from fastio.transports.transport import LOAD, TransportResult

UNSEALED = "not verified: the file carries no checksums of its tensors"
MAPPED = "not verified: mapped pages are read when they are used"
READ_WHOLE = "keys: torch read all of the file, and the rest was dropped"
READ_AGAIN = "not verified in memory: the file's checksums were right, then torch read it by itself"


def call_torch(request: LoadRequest, f: Any) -> Any:
    """torch.load itself, and then the entries that are wanted."""
    weights_only = None if request.by_default else request.weights_only
    obj = torch.serialization.load(
        f, request.map_location, weights_only=weights_only, mmap=request.mmap, **request.arguments
    )
    return obj if request.keys is None else pick(request.path, obj, request.keys)


def load_by_torch(
    plan: TorchLoad, fd: int, size: int, started: float, progress: Progress | None
) -> tuple[Any, Transfer]:
    """torch.load on the very file that is open here. The result is not ``verified``, see :func:`read_by_torch`."""
    moved, obj = read_by_torch(plan.request, fd, size, plan.file_format, progress)
    return obj, completed(
        Transfer,
        LOAD,
        plan.request.path,
        started,
        format=plan.file_format or PT,
        tool="torch",
        route=moved.route,
        reason=plan.why,
        nbytes=size,
        notes=moved.notes,
    )


def read_by_torch(
    request: LoadRequest, fd: int, size: int, file_format: str | None, progress: Progress | None
) -> tuple[TransportResult, Any]:
    """torch.load on the very file that is open here, which is compared with its checksums before.

    What torch put into memory was compared with nothing.
    """
    mapped = is_mapped(request, file_format)
    notes = _verify_first(request.path, fd, size) if file_format == PT and request.verify and not mapped else ()
    if request.keys is not None and not mapped:
        notes = (READ_WHOLE, *notes)
    if mapped and request.verify:
        notes = (MAPPED, *notes)
    link = f"/proc/self/fd/{fd}"
    # torch goes by a safetensors' suffix, fastio by what is in the file.
    by_link = (file_format == PT or request.path.endswith(".safetensors")) and os.path.exists(link)
    obj = call_torch(request, link if by_link else request.path)
    tell_end(progress, size)
    return TransportResult("mmap" if mapped else "library", notes=notes), obj


def _verify_first(path: str, fd: int, size: int) -> tuple[str, ...]:
    """Compare the file with its checksums before torch reads it; gives what the result says of that."""
    try:
        archive = open_archive(path, fd, size, read_local_headers=True)
    except NeedsTorchError as reason:
        archive = reason.archive
    if not archive.checksummed:
        return (UNSEALED,)
    _, notes = verify_archive(archive, size)
    return (*notes, READ_AGAIN if archive.has_storage_crcs else UNSEALED)
