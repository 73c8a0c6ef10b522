"""Loads that are torch's own: which they are, and torch.load with what fastio adds to it."""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from typing import Any, NamedTuple

import torch

from fastio.errors import UnsupportedError
from fastio.formats import probe
from fastio.formats.pt_load import NotPlainError, open_archive
from fastio.formats.sense import PT
from fastio.formats.zip_members import verify_members
from fastio.job import Progress
from fastio.outcome import Transfer
from fastio.progress import tell_end
from fastio.transport import LOAD
from fastio.verify import verify_archive

_torch_config: Any = None
with contextlib.suppress(ImportError):  # torch has it since 2.7
    _torch_config = importlib.import_module("torch.utils.serialization.config")

# Why torch judges a file whose first bytes say nothing.
NO_FORMAT = "it is in torch's legacy format, or none"
UNSEALED = "not verified: the file carries no checksums of its tensors"
_TORCH_DECIDES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


class LoadCall(NamedTuple):
    """The arguments of one load."""

    path: str
    map_location: Any
    weights_only: bool
    mmap: bool | None
    policy: Any
    verify: bool
    progress: Progress | None
    arguments: dict[str, Any]


def torch_only(call: LoadCall, form: str | None) -> str | None:
    """Why this call is torch's own, if it is."""
    if form is None:
        return NO_FORMAT
    if form != PT:
        if call.mmap:
            raise UnsupportedError(f"{call.path}: mmap=True is for .pt files; leave it out for .{form}")
        return None
    serialization: Any = torch.serialization
    if call.mmap or (call.mmap is None and _config_mmap()):
        return "mmap: its pages are read, unverified, when they are used"
    if call.arguments.get("pickle_module") is not None:
        return "a pickle module was given"
    if probe.why_not():
        return probe.why_not()
    if any(name in os.environ for name in _TORCH_DECIDES):
        return "an environment variable of torch's decides about weights_only"
    if serialization._serialization_tls.skip_data:
        return "the call is inside skip_data()"
    if torch._guards.detect_fake_mode(None) is not None or _is_meta(call.map_location):
        return "only shapes are wanted (fake or meta tensors)"
    call.arguments.pop("pickle_module", None)
    return None


def _config_mmap() -> bool:
    return _torch_config is not None and bool(_torch_config.load.mmap)


def _is_meta(map_location: Any) -> bool:
    return isinstance(map_location, (str, torch.device)) and torch.device(map_location).type == "meta"


def load_by_torch(
    call: LoadCall, fd: int, size: int, form: str | None, started: float, why: str
) -> tuple[Any, Transfer]:
    """torch.load itself, on the very file that is open here, checked before if it can be."""
    mapped = call.mmap or (call.mmap is None and _config_mmap())
    verified = False
    notes: tuple[str, ...] = ()
    if form == PT and call.verify and not mapped:
        verified, notes = _verify_first(call.path, fd, size)
    link = f"/proc/self/fd/{fd}"
    path = link if form == PT and os.path.exists(link) else call.path
    obj = torch.serialization.load(
        path, call.map_location, weights_only=call.weights_only, mmap=call.mmap, **call.arguments
    )
    tell_end(call.progress, size)
    seconds = time.perf_counter() - started
    route = "mmap" if mapped else "library"
    return obj, Transfer(LOAD, call.path, form or PT, "torch", route, why, size, seconds, False, verified, notes)


def _verify_first(path: str, fd: int, size: int) -> tuple[bool, tuple[str, ...]]:
    """Whether every byte was checked, and what is to be said about it."""
    try:
        archive = open_archive(path, fd, size, careful=True)
    except NotPlainError as reason:
        if reason.archive is None:
            verify_members(path, fd)
            return True, ()
        archive = reason.archive
    if not archive.checksummed:
        return False, (UNSEALED,)
    _, notes = verify_archive(archive, size)
    return (True, notes) if archive.sealed else (False, (*notes, UNSEALED))
