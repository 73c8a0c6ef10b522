"""save and load: the whole story on one page."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from fastio.arguments import (
    FileLike,
    Format,
    HostMemory,
    LoadArguments,
    MapLocation,
    Policy,
    Progress,
    SaveArguments,
)
from fastio.engine import file_objects
from fastio.engine.call_checks import (
    check_flag,
    check_load_keywords,
    check_map_location,
    check_readable,
    check_save_keywords,
    check_writable,
)
from fastio.engine.load import load_file
from fastio.engine.load_plan import device_named_in
from fastio.engine.plan import LoadRequest, SaveRequest
from fastio.engine.save import save_file
from fastio.engine.tool_selection import check
from fastio.errors import UnsupportedError
from fastio.files.open_file import is_path, name_of, translate_open_limit
from fastio.formats import detect
from fastio.formats.key_selection import checked
from fastio.formats.pt.view_clones import cloning
from fastio.memory.load_buffers import PINNED, SHARED
from fastio.memory.pinned_memory import check_available
from fastio.progress import shown
from fastio.results import SaveResult, publish
from fastio.transports.transport import LOAD, SAVE

if TYPE_CHECKING:
    from typing_extensions import Unpack


def save(
    obj: object,
    f: FileLike,
    *,
    policy: Policy = "auto",
    durable: bool = True,
    format: Format | None = None,
    clone: bool = False,
    progress: Progress = None,
    **torch_save_arguments: Unpack[SaveArguments],
) -> SaveResult:
    """Save an object, as ``torch.save`` does, by the fastest way there is here.

    A ``.pt`` file always carries the CRC-32 of every record, whatever ``torch.serialization.set_crc32_options`` says,
    and storages are aligned by fastio's own rule (large ones to 4096 bytes, where that costs little room, else to 64),
    whatever ``torch.utils.serialization.config.save.storage_alignment`` says. Both settings count where torch itself
    does the work: for file objects, its legacy format, ``policy="torch"``, and pickle modules.

    Args:
        obj: for ``pt`` anything that ``torch.save`` takes, tensors of any shape, dtype and device in it; for
            ``safetensors`` a dict of str to tensors; for ``npy`` one tensor.
        f: a path, or a file object as ``torch.save`` takes it. At a path, the old file is replaced in one step when the
            new one is whole; interrupted at any time, the path holds one of the two. The new file has the old one's
            owner, group, list of access rights and permission bits, as far as this process may give them, but never
            setuid, setgid or the sticky bit. A URL of fsspec, such as ``"s3://bucket/it.pt"``, is written on this
            machine, then uploaded.
        policy: who chooses the tool: ``"auto"``, a tool's name, a dictionary's path or object, ``"w"``, ``"r"`` or
            ``"w+r"``. Where there is no choice (a file object, torch's legacy format), the result says why.
        durable: return only when the file would survive a power cut.
        format: ``"pt"``, ``"safetensors"`` or ``"npy"``; None takes it from the suffix, ``pt`` for any other.
        clone: of a tensor that views a part of a larger storage, write that part alone, as if it had been cloned; what
            viewed the very same elements still shares them after the load. ``torch.save`` writes the whole storage, and
            so does ``pt`` without this; the other formats never do.
        progress: True for a progress bar on stderr, or without a terminal for a line now and then; or a function that
            is called with (bytes done, bytes in all). Only at the end where torch does the work.
        torch_save_arguments: torch.save's own: ``pickle_protocol``, ``pickle_module``, …; for ``safetensors`` its
            library's ``metadata``, a dict of str to str, and ``checksums`` and ``hashes`` of
            :func:`fastio.save_file`.

    Raises:
        FormatError: the format cannot hold the object. TransferError (an OSError): the system refused. RemoteError (an
        OSError): the place of a URL refused, or cannot be reached.
        ToolUnavailableError: the tool that ``policy`` names cannot be used here; RefusedError: it could not do this.
        UnpicklableError: ``obj`` holds what cannot be pickled; the message has its place. Errors of an object's own
        ``__reduce__`` keep their class.

    >>> fastio.save(model.state_dict(), "model.pt")
    """
    check_writable(f)
    check_save_keywords(torch_save_arguments)
    file_format = _format(format, f)
    check(policy, SAVE)
    name = _name(f)
    if clone and file_format == detect.PT:
        torch_save_arguments["pickle_module"] = cloning(torch_save_arguments.get("pickle_module") or pickle)
    with shown(progress, f"saving {os.path.basename(name)}") as told, translate_open_limit("save", name):
        request = SaveRequest(obj, name, file_format, policy, bool(durable), dict(torch_save_arguments))
        result = save_file(request, told, None if is_path(f) else f)
    publish(result)
    return result


def save_over_link(obj: Any, path: str) -> SaveResult:
    """:func:`save` as ``pt``, durably, in the place of what is at the path: a symbolic link is replaced, too."""
    result = save_file(SaveRequest(obj, path, detect.PT, "auto", True, {}, follow_link=False), None)
    publish(result)
    return result


def load(
    f: FileLike,
    map_location: MapLocation = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    keys: Iterable[str] | None = None,
    into: HostMemory | None = None,
    policy: Policy = "auto",
    verify: bool = True,
    progress: Progress = None,
    **torch_load_arguments: Unpack[LoadArguments],
) -> Any:
    """Load an object, as ``torch.load`` does, by the fastest way there is here, and check every byte of it.

    The format is told by the first bytes of the file, or of what a file object has from its position on. What a URL of
    fsspec names is downloaded into a cache, unless that has it. ``f``,
    ``map_location``, ``weights_only``, ``mmap`` and further arguments mean what they mean to ``torch.load``; ``policy``
    and ``progress`` what they mean to :func:`save`.

    Args:
        weights_only: None is True, also where a ``pickle_module`` is given, with which ``torch.load`` takes None for
            False: here such a module needs an explicit ``weights_only=False``. As for ``torch.load``, the environment
            variable ``TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD`` makes False of None, with torch's warning.
        mmap: True maps the file into host memory and copies nothing: pages are read when they are used, and compared
            with no checksum. Changes of the tensors never reach the file. The file must stay as it is while they live:
            the kernel ends a process (SIGBUS) that uses a page of a file that was truncated. None is False, but for
            ``pt`` what ``torch.utils.serialization.config.load.mmap`` says.
        keys: load these entries of the dict in the file, and read only the bytes that they need (``pt`` and
            ``safetensors``). A name is a key, or keys of nested dicts joined by dots, as ``fastio inspect`` shows them.
            The result has the dicts of the file without their other entries: ``["model"]`` gives ``{"model": {...}}``.
        into: the kind of host memory that is filled, without a second copy. ``"pinned"``: pinned for the accelerator of
            this machine, so that ``.to(device, non_blocking=True)`` need not wait; one block for the file, which is
            unpinned with the last of its tensors, and which forked processes do not have. ``"shared"``: shared memory,
            as after ``share_memory_()``: each storage is a segment of its own by torch's sharing strategy, other
            processes get it through ``torch.multiprocessing`` without a copy, and it goes with the last tensor. Its
            pages are reserved first. The tensors are on the CPU, whatever the file says.
        verify: compare each record with its CRC-32 before anything is returned: of ``pt``, and of ``safetensors`` that
            fastio saved, or that ``fastio seal`` made checksums for. torch's own load compares none: a load that
            verifies uses it by name only (``policy="torch"``).

    Raises:
        CorruptFileError: the file is damaged; the message names the record. For a tensor of ``safetensors`` it is a
            ChecksumError. FormatError: the file is good, but holds what this torch has no dtype for. TensorMissingError
            (a KeyError): one of ``keys`` is not there; the message has names that are alike. TransferError (an
            OSError): the system refused. Otherwise what ``torch.load`` raises: FileNotFoundError, UnpicklingError, …

    >>> state = fastio.load("model.pt", map_location="cuda")
    """
    check_flag("verify", verify)
    names = None if keys is None else checked(keys)
    safe = weights_only is None or weights_only
    by_default = weights_only is None and torch_load_arguments.get("pickle_module") is None
    arguments = dict(torch_load_arguments)
    request = LoadRequest(
        _name(f), map_location, safe, mmap, policy, verify, arguments, by_default=by_default, keys=names
    )
    if into is not None and not is_path(f):
        raise UnsupportedError(f"{request.path}: into={into!r} needs a path, got a file object; load it without into")
    return _load(f, into_memory(request, into), progress)


def load_as_torch(
    f: Any, map_location: Any, weights_only: bool | None, mmap: bool | None, arguments: dict[str, Any]
) -> Any:
    """:func:`load` for code that means ``torch.load``: what that ignores is ignored, and the transfer has a note."""
    safe, by_default = weights_only is None or weights_only, weights_only is None
    request = LoadRequest(
        _name(f), map_location, safe, mmap, "auto", True, arguments, as_torch=True, by_default=by_default
    )
    return _load(f, request, None)


def into_memory(request: LoadRequest, into: str | None) -> LoadRequest:
    """The request for a load into a kind of host memory: None, ``"pinned"`` or ``"shared"``.

    ValueError for another kind, UnsupportedError for arguments that mean other memory, ToolUnavailableError where no
    accelerator pins memory.
    """
    if into is None:
        return request
    if into not in (PINNED, SHARED):
        raise ValueError(f"into={into!r}: expected {PINNED!r}, {SHARED!r} or None")
    device = torch.device("cpu") if request.map_location is None else device_named_in(request)
    if device is None or device.type != "cpu":
        raise UnsupportedError(
            f"{request.path}: into={into!r} is host memory, got map_location={request.map_location!r}; leave one of "
            "them out"
        )
    if request.mmap:
        raise UnsupportedError(f"{request.path}: mmap=True maps the file, and into={into!r} copies it; leave one out")
    if into == PINNED:
        check_available()
    return request._replace(into=into, map_location="cpu", mmap=False)


def _name(f: Any) -> str:
    return os.fsdecode(f) if is_path(f) else name_of(f)


def _load(f: Any, request: LoadRequest, progress: Any) -> Any:
    check_readable(f)
    check_map_location(request.map_location)
    check_load_keywords(request.arguments, request.weights_only, load)
    check(request.policy, LOAD)
    name = request.path
    with shown(progress, f"loading {os.path.basename(name)}") as told, translate_open_limit("load", name):
        obj, transfer = load_file(request, told) if is_path(f) else file_objects.load_stream(request, f, told)
    publish(transfer)
    return obj


def _format(format: str | None, f: Any) -> str:
    if format is None:
        return detect.from_name(os.fsdecode(f)) if is_path(f) else detect.PT
    if format not in detect.FORMATS:
        raise ValueError(f"format={format!r}: expected one of {', '.join(detect.FORMATS)}, or None to go by the suffix")
    return format
