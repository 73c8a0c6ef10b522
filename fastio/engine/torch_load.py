"""Loads that torch does itself: torch.load, with a check of the file before it."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

import torch

from fastio.engine.background_job import Progress, tell_end
from fastio.engine.executor import result_of
from fastio.engine.plan import LoadRequest, TorchLoad
from fastio.engine.record_checksums import verify_archive
from fastio.files.open_file import not_a_file
from fastio.formats import foreign
from fastio.formats.detect import PT
from fastio.formats.key_selection import pick
from fastio.formats.pt.pickle_errors import named_pickle_errors
from fastio.formats.pt.reader import PICKLE
from fastio.formats.small_reads import head
from fastio.remote.urls import is_remote
from fastio.results import Transfer
from fastio.transports.transport import LOAD, TransportResult
from fastio.volumes import views

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
    path, file_format = plan.request.path, plan.file_format
    moved, obj = read_by_torch(plan.request, fd, size, file_format, plan.mapped, progress)
    seconds = time.perf_counter() - started
    return obj, result_of(LOAD, path, file_format or PT, "torch", moved, plan.why, size, seconds)


def read_by_torch(
    request: LoadRequest, fd: int, size: int, file_format: str | None, mapped: bool, progress: Progress | None
) -> tuple[TransportResult, Any]:
    """torch.load on the very file that is open here, which is compared with its checksums before.

    What torch put into memory was compared with nothing.
    """
    notes: tuple[str, ...] = ()
    if mapped and request.verify:
        notes = (MAPPED,)
    elif request.verify and file_format == PT:
        archive, _, notes = verify_archive(request.path, fd, size)
        notes = (*notes, READ_AGAIN if archive.has_storage_crcs else UNSEALED)
    if request.keys is not None and not mapped:
        notes = (READ_WHOLE, *notes)
    views.fill(fd)
    link = f"/proc/self/fd/{fd}"
    # torch goes by a safetensors' suffix, fastio by what is in the file.
    is_no_file = views.of(fd) is not None or is_remote(request.path)
    is_seen_by_link = file_format == PT or request.path.endswith(".safetensors") or is_no_file
    by_link = is_seen_by_link and os.path.exists(link)
    with _named_errors(request, fd, size, file_format):
        obj = call_torch(request, link if by_link else request.path)
    tell_end(progress, size)
    return TransportResult("mmap" if mapped else "library", notes=notes), obj


def _named_errors(
    request: LoadRequest, fd: int, size: int, file_format: str | None
) -> contextlib.AbstractContextManager[None]:
    if file_format == PT:
        # torch takes a map_location of bytes for a name, which it cannot look for: that is no fault of the file.
        calls_are_checked = request.weights_only and not isinstance(request.map_location, bytes)
        return named_pickle_errors(request.path, PICKLE, calls_are_checked)
    if file_format is not None or request.arguments.get("pickle_module") is not None:
        return contextlib.nullcontext()
    irregular = not_a_file(os.fstat(fd))
    return foreign.named_errors(request.path, lambda: head(request.path, fd, size, foreign.HEAD_BYTES), irregular)
