"""Loads that torch does itself: which ones, and torch.load with a check of the file before it."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any, NamedTuple

import torch

from fastio.engine.background_job import Progress
from fastio.engine.progress import tell_end
from fastio.engine.verify import verify_archive
from fastio.errors import UnsupportedError
from fastio.formats import dense_tensors
from fastio.formats.detect import NPY, PT, SAFETENSORS
from fastio.formats.key_selection import pick
from fastio.formats.pt import torch_probe
from fastio.formats.pt.reader import NeedsTorchError, open_archive
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.results import Transfer, completed
from fastio.transports.transport import LOAD

# Why torch loads a file whose first bytes name no format.
NO_FORMAT = "it is in torch's legacy format, or none"
UNSEALED = "not verified: the file carries no checksums of its tensors"
MAPPED = "not verified: mapped pages are read when they are used"
READ_WHOLE = "keys: torch read all of the file, and the rest was dropped"
READ_AGAIN = "not verified in memory: the file's checksums were right, then torch read it by itself"
_TORCH_DECIDES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


class LoadCall(NamedTuple):
    """The arguments of one load.

    ``as_torch``: what torch.load ignores is ignored, not refused. ``by_default``: the caller left ``weights_only`` to
    torch.load, whose environment variables decide then. ``keys``: the entries that are wanted; None for all. ``into``:
    the kind of host memory, see :class:`fastio.memory.load_buffers.LoadBuffers`.
    """

    path: str
    map_location: Any
    weights_only: bool
    mmap: bool | None
    policy: Any
    verify: bool
    progress: Progress | None
    arguments: dict[str, Any]
    as_torch: bool = False
    by_default: bool = False
    keys: tuple[str, ...] | None = None
    into: str | None = None


def call_torch(call: LoadCall, f: Any) -> Any:
    """torch.load itself, and then the entries that are wanted."""
    weights_only = None if call.by_default else call.weights_only
    obj = torch.serialization.load(f, call.map_location, weights_only=weights_only, mmap=call.mmap, **call.arguments)
    return obj if call.keys is None else pick(call.path, obj, call.keys)


def given_arguments(call: LoadCall) -> list[str]:
    """Which of torch.load's further arguments say something."""
    return [name for name, value in call.arguments.items() if value is not None]


def without_ignored(call: LoadCall) -> tuple[LoadCall, list[str]]:
    """A load of safetensors without what torch.load ignores for them, and notes of it."""
    ignored = [*(["mmap"] if call.mmap else []), *given_arguments(call)]
    plain = call._replace(mmap=None, arguments={}, as_torch=False)
    return plain, [f"torch.load ignores {', '.join(ignored)} for safetensors"] if ignored else []


def device_named(where: str | bytes | torch.device) -> torch.device | None:
    """The device of that name; None where torch has none: there may be a package registered that knows it."""
    try:
        return torch.device(where.decode() if isinstance(where, bytes) else where)
    except (RuntimeError, UnicodeDecodeError):
        return None


def torch_only(call: LoadCall, file_format: str | None) -> str | None:
    """Why this call is torch's own, if it is."""
    if file_format is None:
        return NO_FORMAT
    if file_format != PT:
        if file_format != SAFETENSORS and call.keys is not None:
            why = f".{file_format} holds one, without a name" if file_format == NPY else f"not in .{file_format}"
            raise UnsupportedError(f"{call.path}: keys= selects tensors by name; {why}")
        dense_tensors.check_mode(call.path, file_format)
        return None
    serialization: Any = torch.serialization
    if is_mapped(call, file_format) and _maps_shared():
        return "torch.serialization.set_default_mmap_options(MAP_SHARED): changes of the tensors reach the file"
    if call.arguments.get("pickle_module") is not None:
        return "a pickle module was given"
    if torch_probe.unsupported_reason():
        return torch_probe.unsupported_reason()
    if any(name in os.environ for name in _TORCH_DECIDES):
        return "an environment variable of torch's decides about weights_only"
    if serialization._serialization_tls.skip_data:
        return "the call is inside skip_data()"
    where = call.map_location
    device = device_named(where) if isinstance(where, (str, bytes, torch.device)) else None
    if torch._guards.detect_fake_mode(None) is not None or (device is not None and device.type == "meta"):
        return "only shapes are wanted (fake or meta tensors)"
    if device is None and isinstance(where, (str, bytes)):
        return f"map_location={where!r} is no device: what was registered with torch decides"
    call.arguments.pop("pickle_module", None)
    return None


def is_mapped(call: LoadCall, file_format: str | None) -> bool:
    """Whether the load maps the file: as the call says, else, of what torch loads, as torch's setting says."""
    by_setting = call.mmap is None and file_format in (PT, None) and _config_mmap()
    return bool(call.mmap) or by_setting


def _maps_shared() -> bool:
    """Whether torch is to map files so that changes of the tensors reach the file."""
    options = getattr(torch.serialization, "get_default_mmap_options", None)  # since torch 2.4
    return options is not None and options() != mmap.MAP_PRIVATE


def _config_mmap() -> bool:
    """torch's own setting, which nobody can have changed before its module (since torch 2.7) was imported."""
    config: Any = sys.modules.get("torch.utils.serialization.config")
    return config is not None and bool(config.load.mmap)


def load_by_torch(
    call: LoadCall, fd: int, size: int, file_format: str | None, started: float, why: str
) -> tuple[Any, Transfer]:
    """torch.load itself, on the very file that is open here, which is compared with its checksums before.

    The result is not ``verified``: what torch put into memory was compared with nothing.
    """
    if call.into is not None:
        own = {PINNED: "pin_memory", SHARED: "share_memory_"}[call.into]
        raise UnsupportedError(
            f"{call.path}: torch reads this file by itself ({why}), into memory of its own, got into={call.into!r}; "
            f"load it without into, and call {own}() of its tensors"
        )
    mapped = is_mapped(call, file_format)
    notes = _verify_first(call.path, fd, size) if file_format == PT and call.verify and not mapped else ()
    if call.keys is not None and not mapped:
        notes = (READ_WHOLE, *notes)
    if mapped and call.verify:
        notes = (MAPPED, *notes)
    link = f"/proc/self/fd/{fd}"
    # torch goes by a safetensors' suffix, fastio by what is in the file.
    by_link = (file_format == PT or call.path.endswith(".safetensors")) and os.path.exists(link)
    path = link if by_link else call.path
    obj = call_torch(call, path)
    tell_end(call.progress, size)
    return obj, completed(
        Transfer,
        LOAD,
        call.path,
        started,
        format=file_format or PT,
        tool="torch",
        route="mmap" if mapped else "library",
        reason=why,
        nbytes=size,
        notes=notes,
    )


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
