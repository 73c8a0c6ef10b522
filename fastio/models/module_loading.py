"""load_model: from files straight into the parameters and buffers of a module."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

import torch

from fastio.engine.tool_selection import check, is_filled
from fastio.errors import ChecksumError
from fastio.formats.layout import storage_offset_bytes
from fastio.memory.raw_memory import mark_overwritten, synchronize
from fastio.models.load_plan import LoadPlan, module_target, plan_load
from fastio.models.module_tensors import ModuleTensors, has_own_loading, module_tensors
from fastio.models.part_batches import Batch, Part, batches
from fastio.models.part_reads import read_batch, read_into
from fastio.models.selection import whole
from fastio.models.weight_files import WeightFile, WeightFiles, open_weights
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD, Extent

_CPU = torch.device("cpu")
_log = logging.getLogger("fastio.models")


def load_model(
    model: torch.nn.Module,
    filename: Any,
    strict: bool = True,
    device: Any = None,
    *,
    atomic: bool = True,
    policy: Any = "auto",
    verify: bool = True,
) -> tuple[list[str], list[str]]:
    """Load the weights of safetensors or ``.pt`` files into a module, as ``safetensors.torch.load_model`` does.

    All names, shapes and dtypes are compared before the first byte is read. Parameters and buffers keep their memory,
    and get new values. Those on the meta device are replaced by tensors with memory; what is tied stays tied. The
    module's own hooks run, as for ``load_state_dict``.

    Args:
        model: the module. Its dtypes must be the files'.
        filename: a file, a list of files, an index or a folder, as for :func:`fastio.safe_open`. Of a ``.pt`` with
            more than the module's state dict, load that part by :func:`fastio.load`.
        strict: raise for names that only the files or only the module have, and for damaged tensors. With False, a
            tensor that does not match its checksum is not loaded: a warning is logged, and its names are missing.
        device: where tensors that are on the meta device are put; None for the CPU. Others stay where they are.
        atomic: read everything before the module changes, so that an error leaves it as it was; this needs memory for
            the model a second time, unless it is on the meta device. With False, tensors are read straight into the
            module, without that memory: after an error, its weights are a mixture, and must be loaded again. A damaged
            tensor is an error then, whatever ``strict`` is.
        policy: who chooses the tool, as for :func:`fastio.load`.
        verify: compare each tensor with its checksum, if its file has one.

    Returns:
        (missing, unexpected): names that the files lack (and those of damaged tensors), and names that the module
        lacks, sorted. Of tied tensors one name is enough; further ones in the files are unexpected, unless
        a ``.pt`` stores them as one.

    Raises:
        ModelMismatchError (a RuntimeError): names, shapes or dtypes differ. UnsupportedError: the module holds tensors
        of tensors, such as DTensors. ChecksumError (a CorruptFileError): a tensor is damaged. Otherwise what
        :func:`fastio.safe_open` raises.

    >>> missing, unexpected = fastio.load_model(model, "folder", strict=False)
    """
    check(policy, LOAD)
    created_on = torch.device("cpu" if device is None else device)
    if created_on.type == "meta":
        raise ValueError("device='meta': tensors there have no memory to load into; name the device to create them on")
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"expected a module, got {type(model).__name__}; load_into fills the tensors of a dict")
    with gc_paused():  # a third of the time for ten thousand tensors
        found = module_tensors(model)
        with open_weights(filename, verify) as files:
            plan = plan_load(module_target(model), found, files, strict)
            names = plan.names
            if not atomic and not has_own_loading(model):
                names = read_in_place(found, plan, files, policy)
            loaded, damaged = read_new(found, names, files, created_on, policy, skip_damaged=atomic and not strict)
    _assign(model, found, plan, loaded)
    return plan.result(damaged)


def read_new(
    found: ModuleTensors,
    names: list[str],
    files: WeightFiles,
    created_on: torch.device,
    policy: Any,
    skip_damaged: bool,
) -> tuple[dict[str, torch.Tensor], set[str]]:
    """Read tensors into new memory, on the device where each is wanted; with ``skip_damaged``, all but damaged ones.

    Returns the tensors, and the names of damaged ones.
    """
    by_device: dict[torch.device, list[Part]] = {}
    for name in names:
        tensor = found.tensors.get(name)
        device = _CPU if tensor is None else created_on if tensor.is_meta else tensor.device
        by_device.setdefault(device, []).append(_part(files, name))
    loaded: dict[str, torch.Tensor] = {}
    damaged: set[str] = set()
    for device, parts in by_device.items():
        left = batches(parts)[::-1]
        while left:
            batch = left.pop()
            try:
                tensors = read_batch(batch, device, policy)
            except ChecksumError as error:
                if not skip_damaged:
                    raise
                if len(batch.parts) > 1:  # each by itself: only the damaged ones are lost
                    left += [Batch([part], [0]) for part in batch.parts]
                    continue
                damaged.add(batch.parts[0].name)
                _log.warning("strict=False leaves out a damaged tensor: %s", error)
            else:
                loaded.update(zip([part.name for part in batch.parts], tensors, strict=True))
    return loaded, damaged


def _part(files: WeightFiles, name: str) -> Part:
    entry = files.entry(name)
    return Part(files.file_of[name], name, entry, whole(entry.shape))


def _assign(model: torch.nn.Module, found: ModuleTensors, plan: LoadPlan, loaded: dict[str, torch.Tensor]) -> None:
    """Give the module what was read: new tensors in the place of meta tensors, new values to all others."""
    replaced: dict[str, torch.Tensor] = {}
    copied: dict[str, torch.Tensor] = {}
    for name, tensor in loaded.items():
        target = found.tensors.get(name)
        if target is None or not target.is_meta:
            copied[name] = tensor
        elif isinstance(target, torch.nn.Parameter):
            replaced[name] = torch.nn.Parameter(tensor, requires_grad=target.requires_grad)
        else:
            replaced[name] = tensor
    # load_state_dict assigns each name by itself: the other names of a tensor get the very same object.
    replaced.update({name: replaced[kept] for name, kept in plan.aliases.items() if kept in replaced})
    if replaced:
        model.load_state_dict(replaced, strict=False, assign=True)
    if copied:
        model.load_state_dict(copied, strict=False)


def read_in_place(found: ModuleTensors, plan: LoadPlan, files: WeightFiles, policy: Any) -> list[str]:
    """Read what can be read straight into the module; return the names of the rest."""
    rest: list[str] = []
    in_place: dict[tuple[WeightFile, str], list[_InPlace]] = {}
    for name in plan.names:
        target, entry, file = found.tensors.get(name), files.entry(name), files.file_of[name]
        if target is None or name in plan.overlapping or not _is_fillable(target, file) or entry.stride is not None:
            rest.append(name)
            continue
        ahead = in_place.setdefault((file, target.device.type), [])
        if ahead and entry.offset < ahead[-1].extent.offset + ahead[-1].extent.nbytes:  # both in one storage of a .pt
            rest.append(name)
            continue
        storage = target.untyped_storage()
        address = storage.data_ptr() + storage_offset_bytes(target)
        crc = file.crc(name)
        extent = Extent(entry.offset, entry.nbytes, address, crc is not None, target.device.type, storage, name)
        ahead.append(_InPlace(extent, target, crc))
    synchronize({one.target.device for ahead in in_place.values() for one in ahead})
    for (file, _), ahead in in_place.items():
        try:
            crcs = {index: one.crc for index, one in enumerate(ahead) if one.crc is not None}
            read_into(file, [one.extent for one in ahead], None, policy, crcs, in_place=True)
            file.check_unchanged()
        finally:
            for one in ahead:
                mark_overwritten(one.target)
    return rest


class _InPlace(NamedTuple):
    """What is read into memory that a tensor has, and its CRC-32, if the file has one."""

    extent: Extent
    target: torch.Tensor
    crc: int | None


def _is_fillable(target: torch.Tensor, file: WeightFile) -> bool:
    kind = target.device.type
    is_plain = target.is_contiguous() and not target.is_conj() and not target.is_neg()
    return is_plain and target.numel() > 0 and not target.is_meta and is_filled(kind, file.format)
