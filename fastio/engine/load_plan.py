"""Plans a load: who reads the file, where its bytes lie, which memory they fill, and what is verified.

Headers are read, and compared with the file's length; no payload is.
"""

from __future__ import annotations

import torch

from fastio import formats
from fastio.engine.plan import FileLoad, LoadPlan, LoadRequest, MappedLoad, TorchLoad
from fastio.engine.tool_selection import is_filled, plan_transfer
from fastio.errors import FormatError, UnsupportedError
from fastio.formats import dense_tensors
from fastio.formats.detect import HEAD_BYTES, INDEX_SUFFIX, NPY, PT, SAFETENSORS, detect
from fastio.formats.pt import source as pt_source
from fastio.formats.pt import torch_probe, torch_settings
from fastio.formats.pt.reader import NeedsTorchError
from fastio.formats.small_reads import head
from fastio.formats.source import Source
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.runtime.gc_pause import gc_paused
from fastio.transports import registry
from fastio.transports.transport import LOAD, is_resident

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
        request = _without_ignored(request)
    if request.path.endswith(INDEX_SUFFIX) and head(request.path, fd, size, 1) == b"{":
        cure = "name the folder or the index in fastio.safe_open or fastio.load_model, or load a shard"
        raise FormatError(f"{request.path}: it is the index of a model in shards, and holds no tensors; {cure}")
    if file_format is None:
        return torch_load(request, None, "it is in torch's legacy format, or none")
    return _plan_pt(request, fd, size) if file_format == PT else _plan_tensors(request, fd, size, file_format)


def _plan_pt(request: LoadRequest, fd: int, size: int) -> LoadPlan:
    device = device_named_in(request)
    mapped = _is_mapped(request, PT)
    if why := _torch_only(request, device, mapped):
        return torch_load(request, PT, why)
    arguments = {name: value for name, value in request.arguments.items() if name != "pickle_module"}
    try:
        with gc_paused():
            source = pt_source.source(
                request.path, fd, size, request.map_location, request.weights_only, request.verify, arguments,
                request.keys,
            )  # fmt: skip
    except NeedsTorchError as reason:
        return torch_load(request, PT, str(reason))
    # Without the name of a device, torch moves the storages from the CPU as it unpickles.
    return MappedLoad(request, source) if mapped else plan_source(request, fd, size, source, device or _CPU)


def _plan_tensors(request: LoadRequest, fd: int, size: int, file_format: str) -> LoadPlan:
    """Plan the load of a file that holds tensors and no pickle."""
    path = request.path
    if file_format != SAFETENSORS and request.keys is not None:
        why = f".{file_format} holds one, without a name" if file_format == NPY else f"not in .{file_format}"
        raise UnsupportedError(f"{path}: keys= selects tensors by name; {why}")
    dense_tensors.check_mode(path, file_format)
    device = _target(request, file_format)
    if request.mmap and device != _CPU:
        raise UnsupportedError(
            f"{path}: mmap=True maps .{file_format} into host memory, not into that of {device}; load without mmap"
        )
    if given := _given_arguments(request):
        raise TypeError(f"{path}: .{file_format} takes none of torch.load's arguments, got {', '.join(given)}")
    # Only .safetensors have parts that are found by name, and checksums that need not be there.
    options = (request.keys, request.verify and not request.mmap) if file_format == SAFETENSORS else ()
    with gc_paused():
        source: Source = formats.module(file_format).source(path, fd, size, *options)
    return MappedLoad(request, source) if request.mmap else plan_source(request, fd, size, source, device)


def plan_source(request: LoadRequest, fd: int, size: int, source: Source, device: torch.device) -> LoadPlan:
    """Plan to read what a format says of the file into new memory on a device."""
    verified = request.verify and source.checksummed
    # A library's own load compares no checksums, and reads all of the file into memory of its own: then it is used only
    # by name.
    own = verified or request.keys is not None or request.into is not None
    transfer = plan_transfer(
        LOAD, request.path, source.format, {device}, source.nbytes, len(source.regions), request.policy,
        "own" if own else "object", resident=is_resident(request.path, fd, size),
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
    return TorchLoad(request, file_format, why, _is_mapped(request, file_format))


def device_named_in(request: LoadRequest) -> torch.device | None:
    """The device that ``map_location`` names.

    None if it is something else, or torch has none of that name: there may be a package registered that knows it.
    """
    where = request.map_location
    if not isinstance(where, (str, bytes, torch.device)):
        return None
    try:
        return torch.device(where.decode() if isinstance(where, bytes) else where)
    except (RuntimeError, UnicodeDecodeError):
        return None


def _is_mapped(request: LoadRequest, file_format: str | None) -> bool:
    """Whether the load maps the file: as the call says, else, of what torch loads, as torch's setting says."""
    by_setting = request.mmap is None and file_format in (PT, None) and torch_settings.maps_files()
    return bool(request.mmap) or by_setting


def _given_arguments(request: LoadRequest) -> list[str]:
    """Which of torch.load's further arguments say something."""
    return [name for name, value in request.arguments.items() if value is not None]


def _without_ignored(request: LoadRequest) -> LoadRequest:
    """A load of safetensors without what torch.load ignores for them, and with a note of it."""
    ignored = [*(["mmap"] if request.mmap else []), *_given_arguments(request)]
    notes = (f"torch.load ignores {', '.join(ignored)} for safetensors",) if ignored else ()
    return request._replace(mmap=None, arguments={}, as_torch=False, notes=notes)


def _torch_only(request: LoadRequest, device: torch.device | None, mapped: bool) -> str:
    """Why this load of a ``.pt`` is torch's own; empty if it is not. ``device`` is the one that the request names."""
    if mapped and torch_settings.maps_shared():
        return "torch.serialization.set_default_mmap_options(MAP_SHARED): changes of the tensors reach the file"
    if request.arguments.get("pickle_module") is not None:
        return "a pickle module was given"
    if why := torch_probe.unsupported_reason():
        return why
    if torch_settings.decides_weights_only():
        return "an environment variable of torch's decides about weights_only"
    if torch_settings.skips_data():
        return "the call is inside skip_data()"
    if torch._guards.detect_fake_mode(None) is not None or (device is not None and device.type == "meta"):
        return "only shapes are wanted (fake or meta tensors)"
    if device is None and isinstance(request.map_location, (str, bytes)):
        return f"map_location={request.map_location!r} is no device: what was registered with torch decides"
    return ""


def _target(request: LoadRequest, file_format: str) -> torch.device:
    """The device that tensors of a file without a pickle are loaded onto."""
    path, where, device = request.path, request.map_location, device_named_in(request)
    if where is None:
        return _CPU
    if device is None and isinstance(where, (str, bytes)):
        raise UnsupportedError(f"{path}: torch has no device {where!r}; load with map_location='cpu'")
    if device is None:
        kind = "a dict" if isinstance(where, dict) else "a function" if callable(where) else f"the {where!r}"
        raise UnsupportedError(f"{path}: map_location as {kind} is for .pt files; name a device for .{file_format}")
    if not is_filled(device.type, file_format):
        raise UnsupportedError(
            f"{path}: no tool here fills memory on {device} with .{file_format} (fastio.tools() says why); "
            "load with map_location='cpu' (of load_file: device='cpu'), and move the tensors by .to()"
        )
    return device
