"""Plans a load: who reads the file, where its bytes lie, which memory they fill, and what is verified.

Headers are read, and compared with the file's length; no payload is.
"""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

import torch

from fastio import formats
from fastio.engine.plan import FileLoad, LoadPlan, LoadRequest, MappedLoad, TorchLoad
from fastio.engine.tool_selection import is_filled, plan_transfer
from fastio.errors import FormatError, UnsupportedError
from fastio.formats import dense_tensors
from fastio.formats.detect import HEAD_BYTES, INDEX_SUFFIX, NPY, PT, SAFETENSORS, detect
from fastio.formats.pt import source as pt_source
from fastio.formats.pt import torch_probe
from fastio.formats.pt.reader import NeedsTorchError
from fastio.formats.small_reads import head
from fastio.formats.source import Source
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.memory.pinned_memory import check_available
from fastio.runtime.gc_pause import gc_paused
from fastio.runtime.native_errors import translate_native_errors
from fastio.transports import registry
from fastio.transports.transport import LOAD, is_resident

NO_FORMAT = "it is in torch's legacy format, or none"
"""Why torch loads a file whose first bytes name no format."""
_TORCH_DECIDES = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
_CPU = torch.device("cpu")


def detected(path: str, fd: int, size: int) -> str | None:
    """The format that the first bytes of an open file have; None if only torch can judge."""
    return detect(head(path, fd, size, HEAD_BYTES), path)


def plan_load(request: LoadRequest, fd: int, size: int, file_format: str | None) -> LoadPlan:
    """Plan the load of an open file of ``size`` bytes, of the format that its first bytes have.

    Raises what the load would raise for a damaged header, and for arguments that no load of this file takes:
    CorruptFileError, FormatError, UnsupportedError, TensorMissingError, TypeError, ToolUnavailableError.
    """
    if request.as_torch and file_format == SAFETENSORS:
        request, ignored = _without_ignored(request)
        return plan_load(request, fd, size, file_format)._replace(notes=ignored)
    if request.path.endswith(INDEX_SUFFIX) and head(request.path, fd, size, 1) == b"{":
        cure = "name the folder or the index in fastio.safe_open or fastio.load_model, or load a shard"
        raise FormatError(f"{request.path}: it is the index of a model in shards, and holds no tensors; {cure}")
    why = _torch_only(request, file_format)
    if why or file_format is None:
        return torch_load(request, file_format, why or NO_FORMAT)
    device, mapped = _target(request, file_format), is_mapped(request, file_format)
    if mapped and file_format != PT and device != _CPU:
        raise UnsupportedError(
            f"{request.path}: mmap=True maps .{file_format} into host memory, not into that of {device}; load without "
            "mmap"
        )
    try:
        with gc_paused():
            source = _source(request, fd, size, file_format)
    except NeedsTorchError as reason:
        return torch_load(request, file_format, str(reason))
    return MappedLoad(request, source) if mapped else plan_source(request, fd, size, source, device)


def plan_source(request: LoadRequest, fd: int, size: int, source: Source, device: torch.device) -> LoadPlan:
    """Plan to read what a format says of the file into new memory on a device."""
    verified = request.verify and source.checksummed
    # A library's own load compares no checksums, and reads all of the file into memory of its own: then it is used only
    # by name.
    own = verified or request.keys is not None or request.into is not None
    with translate_native_errors(request.path):
        resident = is_resident(fd, size)
    transfer = plan_transfer(
        LOAD, request.path, source.format, {device}, source.nbytes, len(source.regions), request.policy,
        "own" if own else "object", resident=resident,
    )  # fmt: skip
    if not transfer.tools:
        return torch_load(request, source.format, f"no tool fills memory on {device}")
    if (
        request.into is not None
        and transfer.fixed
        and source.format in registry.get(transfer.tools[0]).capabilities.whole
    ):
        return torch_load(request, source.format, transfer.fixed)
    return FileLoad(request, source, device, verified, transfer)


def torch_load(request: LoadRequest, file_format: str | None, why: str) -> TorchLoad:
    """Plan a load by torch. UnsupportedError if it is to fill a kind of memory that torch does not."""
    if request.into is not None:
        own = {PINNED: "pin_memory", SHARED: "share_memory_"}[request.into]
        raise UnsupportedError(
            f"{request.path}: torch reads this file by itself ({why}), into memory of its own, got "
            f"into={request.into!r}; load it without into, and call {own}() of its tensors"
        )
    return TorchLoad(request, file_format, why)


def device_named(where: Any) -> torch.device | None:
    """The device of that name; None where torch has none: there may be a package registered that knows it."""
    try:
        return torch.device(where.decode() if isinstance(where, bytes) else where)
    except (RuntimeError, UnicodeDecodeError):
        return None


def is_mapped(request: LoadRequest, file_format: str | None) -> bool:
    """Whether the load maps the file: as the call says, else, of what torch loads, as torch's setting says."""
    by_setting = request.mmap is None and file_format in (PT, None) and _config_mmap()
    return bool(request.mmap) or by_setting


def _given_arguments(request: LoadRequest) -> list[str]:
    """Which of torch.load's further arguments say something."""
    return [name for name, value in request.arguments.items() if value is not None]


def _without_ignored(request: LoadRequest) -> tuple[LoadRequest, tuple[str, ...]]:
    """A load of safetensors without what torch.load ignores for them, and notes of it."""
    ignored = [*(["mmap"] if request.mmap else []), *_given_arguments(request)]
    plain = request._replace(mmap=None, arguments={}, as_torch=False)
    return plain, ((f"torch.load ignores {', '.join(ignored)} for safetensors",) if ignored else ())


def _torch_only(request: LoadRequest, file_format: str | None) -> str:
    """Why this load is torch's own; empty if it is not."""
    if file_format is None:
        return NO_FORMAT
    if file_format != PT:
        if file_format != SAFETENSORS and request.keys is not None:
            why = f".{file_format} holds one, without a name" if file_format == NPY else f"not in .{file_format}"
            raise UnsupportedError(f"{request.path}: keys= selects tensors by name; {why}")
        dense_tensors.check_mode(request.path, file_format)
        return ""
    if is_mapped(request, file_format) and _maps_shared():
        return "torch.serialization.set_default_mmap_options(MAP_SHARED): changes of the tensors reach the file"
    if request.arguments.get("pickle_module") is not None:
        return "a pickle module was given"
    if torch_probe.unsupported_reason():
        return torch_probe.unsupported_reason()
    if any(name in os.environ for name in _TORCH_DECIDES):
        return "an environment variable of torch's decides about weights_only"
    serialization: Any = torch.serialization
    if serialization._serialization_tls.skip_data:
        return "the call is inside skip_data()"
    where = request.map_location
    device = device_named(where) if isinstance(where, (str, bytes, torch.device)) else None
    if torch._guards.detect_fake_mode(None) is not None or (device is not None and device.type == "meta"):
        return "only shapes are wanted (fake or meta tensors)"
    if device is None and isinstance(where, (str, bytes)):
        return f"map_location={where!r} is no device: what was registered with torch decides"
    return ""


def _maps_shared() -> bool:
    """Whether torch is to map files so that changes of the tensors reach the file."""
    options = getattr(torch.serialization, "get_default_mmap_options", None)  # since torch 2.4
    return options is not None and options() != mmap.MAP_PRIVATE


def _config_mmap() -> bool:
    """torch's own setting, which nobody can have changed before its module (since torch 2.7) was imported."""
    config: Any = sys.modules.get("torch.utils.serialization.config")
    return config is not None and bool(config.load.mmap)


def _target(request: LoadRequest, file_format: str) -> torch.device:
    """The device that storages are loaded onto: the CPU where torch moves them from there as it unpickles."""
    path, where = request.path, request.map_location
    if isinstance(where, (str, bytes, torch.device)):
        device = device_named(where)
        if device is None:
            raise UnsupportedError(f"{path}: torch has no device {where!r}; load with map_location='cpu'")
        if file_format != PT and not is_filled(device.type, file_format):
            raise UnsupportedError(
                f"{path}: no tool here fills memory on {device} with .{file_format} (fastio.tools() says why); "
                "load with map_location='cpu' (of load_file: device='cpu'), and move the tensors by .to()"
            )
        return device
    if where is not None and file_format != PT:
        kind = "a dict" if isinstance(where, dict) else "a function" if callable(where) else f"the {where!r}"
        raise UnsupportedError(f"{path}: map_location as {kind} is for .pt files; name a device for .{file_format}")
    return _CPU


def _source(request: LoadRequest, fd: int, size: int, file_format: str) -> Source:
    if file_format == PT:
        arguments = {name: value for name, value in request.arguments.items() if name != "pickle_module"}
        return pt_source.source(
            request.path, fd, size, request.map_location, request.weights_only, request.verify, arguments, request.keys
        )
    given = _given_arguments(request)
    if given:
        raise TypeError(f"{request.path}: .{file_format} takes none of torch.load's arguments, got {', '.join(given)}")
    # Only .safetensors have parts that are found by name, and checksums that need not be there.
    options = (request.keys, request.verify and not request.mmap) if file_format == SAFETENSORS else ()
    source: Source = formats.module(file_format).source(request.path, fd, size, *options)
    return source


def into_memory(request: LoadRequest, into: str | None) -> LoadRequest:
    """The request for a load into a kind of host memory: None, ``"pinned"`` or ``"shared"``.

    ValueError for another kind, UnsupportedError for arguments that mean other memory, ToolUnavailableError where no
    accelerator pins memory.
    """
    if into is None:
        return request
    if into not in (PINNED, SHARED):
        raise ValueError(f"into={into!r}: expected {PINNED!r}, {SHARED!r} or None")
    where = "cpu" if request.map_location is None else request.map_location
    device = device_named(where) if isinstance(where, (str, bytes, torch.device)) else None
    if device is None or device.type != "cpu":
        raise UnsupportedError(
            f"{request.path}: into={into!r} is host memory, got map_location={where!r}; leave one of them out"
        )
    if request.mmap:
        raise UnsupportedError(f"{request.path}: mmap=True maps the file, and into={into!r} copies it; leave one out")
    if into == PINNED:
        check_available()
    return request._replace(into=into, map_location="cpu", mmap=False)
