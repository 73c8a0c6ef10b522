"""Plans a save: who writes the file, where its bytes will lie, and which tools can fill it."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from fastio import formats
from fastio.engine.plan import FileSave, InPlaceSave, SavePlan, SaveRequest, TorchSave, TransferPlan
from fastio.engine.tool_selection import plan_transfer
from fastio.errors import ToolUnavailableError
from fastio.files.save_target import in_place_reason
from fastio.formats.detect import PT
from fastio.formats.layout import Layout
from fastio.formats.pt import torch_probe, torch_settings, writer
from fastio.formats.pt.view_clones import CloningPickle
from fastio.transports import registry
from fastio.transports.selection import Need
from fastio.transports.transport import SAVE
from fastio.volumes.opening import is_in_volume

_ZIP = "_use_new_zipfile_serialization"


def plan_save(request: SaveRequest, file: Any = None) -> SavePlan:
    """Plan a save to a path, or to a file object. The object is pickled for a path; nothing is written.

    Raises what the save would raise for an object that the format cannot hold, and for arguments that it lacks:
    FormatError, TypeError, ToolUnavailableError, what ``torch.save`` raises for what cannot be pickled.
    """
    request = _without_defaults(request)
    in_volume = is_in_volume(request.path)
    if in_volume:
        request = request._replace(durable=True)  # a volume has no others
    why = in_place_reason(request.path) if file is None else "f is a file object"
    if why:  # laid out first: an object that is refused empties no file
        return InPlaceSave(request, why, None if request.file_format == PT else _lay_out(request), file)
    if why := _torch_only(request):
        return TorchSave(request, why)
    layout = _lay_out(request)
    # Without CRCs, or if its file would not load, torch's own save is used only if it was asked for by name.
    own = in_volume or (request.file_format == PT and (layout.trimmed or not torch.serialization.get_crc32_options()))
    transfer = _transfer(
        layout, request.path, request.file_format, request.policy, request.durable, "extents" if own else "object"
    )
    if not transfer.tools:
        why = f"no tool writes {request.file_format} from memory on {', '.join(transfer.devices)}"
        if request.file_format != PT:
            raise ToolUnavailableError("auto", why, "move the tensors to the CPU first")
        return TorchSave(request, why)
    if in_volume and request.file_format in registry.get(transfer.tools[0]).capabilities.whole:
        return TorchSave(request, transfer.fixed)
    return FileSave(request, layout, transfer)


def plan_layout(layout: Layout, path: str, file_format: str, policy: Any, durable: bool) -> TransferPlan:
    """Plan to fill a new file with a layout. ToolUnavailableError if no tool can."""
    plan = _transfer(layout, path, file_format, policy, durable, "extents")
    if not plan.tools:
        where = ", ".join(plan.devices)
        raise ToolUnavailableError("auto", f"no tool writes from memory on {where}", "save on the CPU")
    return plan


def _transfer(layout: Layout, path: str, file_format: str, policy: Any, durable: bool, need: Need) -> TransferPlan:
    devices, storages = layout.used_devices(), (len(layout.extents) + len(layout.strided)) // 2
    return plan_transfer(SAVE, path, file_format, devices, layout.payload, storages, policy, need, durable=durable)


def _torch_only(request: SaveRequest) -> str:
    """Why torch must do this save; empty if it need not."""
    if request.file_format != PT:
        return ""
    if not request.arguments.get(_ZIP, True):
        return "the legacy format was asked for"
    module = request.arguments.get("pickle_module")
    if module is not None and not (isinstance(module, CloningPickle) and module.module is pickle):
        return "a pickle module was given"
    if why := torch_probe.unsupported_reason():
        return why
    return "the call is inside skip_data()" if torch_settings.skips_data() else ""


def _lay_out(request: SaveRequest) -> Layout:
    if request.file_format != PT:
        return formats.lay_out(request.file_format, request.obj, request.path, request.arguments)
    for name in request.arguments.keys() - writer.ARGUMENTS:
        raise TypeError(f"save() got an unexpected keyword argument {name!r}")  # in torch's words
    return writer.layout(request.obj, request.path, **request.arguments)


def _without_defaults(request: SaveRequest) -> SaveRequest:
    """The request without arguments of torch.save that say what is so anyway: they change no layout."""
    if request.file_format != PT or not request.arguments:
        return request
    arguments = dict(request.arguments)
    if arguments.get(_ZIP):
        del arguments[_ZIP]
    if arguments.get("pickle_module", pickle) is None:
        del arguments["pickle_module"]
    return request._replace(arguments=arguments)
