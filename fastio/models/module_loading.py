"""load_model: from files straight into the parameters and buffers of a module."""

from __future__ import annotations

import torch

from fastio.arguments import Backend, Device, Group, Policy, Weights
from fastio.engine.call_checks import check_flag, swapped
from fastio.engine.tool_selection import check
from fastio.models.device_places import check_names, present_places
from fastio.models.load_plan import LoadPlan, module_target, wanted_dtype
from fastio.models.load_warnings import (
    warn_of_meta_buffers,
    warn_of_nothing_loaded,
    warn_of_other_devices,
    warn_of_tensors_without_memory,
)
from fastio.models.loading import Load
from fastio.models.module_tensors import ModuleTensors, module_tensors
from fastio.models.rank_group import rank_group, together
from fastio.models.safetensors_arguments import check_backend
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD


def load_model(
    model: torch.nn.Module,
    filename: Weights,
    strict: bool = True,
    device: Device | dict[str, Device] = None,
    *,
    backend: Backend = "mmap",
    atomic: bool = False,
    dtype: torch.dtype | None = None,
    policy: Policy = "auto",
    verify: bool = True,
    group: Group = None,
) -> tuple[list[str], list[str]]:
    """Load the weights of safetensors or ``.pt`` files into a module, as ``safetensors.torch.load_model`` does.

    Parameters and buffers keep their memory, and are filled there. Those on the meta device are replaced by tensors
    with memory once these are read and compared; what is tied stays tied. Before the first byte of the module changes,
    all that can be known is checked: the headers of all files, names, shapes, dtypes, whose checksums they are, that no
    file was changed meanwhile, and that there is memory for new tensors, which are read first.

    Buffers that are not persistent are in no file: those on the meta device stay there, with a RuntimeWarning that
    names them.

    Submodules with hooks or methods of their own for ``load_state_dict`` or ``state_dict`` are loaded through
    ``load_state_dict``, at the end, with all that they contain. Their hooks see new tensors, which take memory until
    then: that of the whole model if it has such hooks itself.

    Args:
        model: the module. Its dtypes must be the files', unless ``dtype`` is given.
        filename: a file, a list of files, an index or a folder, as for :func:`fastio.safe_open`. Of a ``.pt`` with
            more than the module's state dict, load that part by :func:`fastio.load`.
        strict: raise for names that only the files or only the module have. Without it, a RuntimeWarning says so if the
            files have no name of the module, so that nothing is loaded, and one names tensors that got no values and
            have no memory: on the meta device, or of a lazy module.
        device: where tensors that are on the meta device are made; None for the CPU. Or a dict of names of submodules,
            parameters or buffers to devices: the longest that a name begins with counts, ``""`` is for all others.
            Nothing is moved: what has memory is filled where it is, with a RuntimeWarning if ``device`` names another
            device for it. ``model.to(device)`` moves a module.
        backend: safetensors' argument, ``"mmap"`` or ``"pread"``. It has no effect: ``policy`` says how files are read.
        atomic: read everything before the module changes, so that an error leaves it as it was; this needs memory for
            what is not on the meta device a second time. By default an error of the disk or a damaged tensor leaves the
            module partly filled; the message says with which tensors. So does an interrupt, without a message, and with
            ``atomic`` one during the copy at the end. With both ``atomic`` and ``strict=False``, a damaged tensor is no
            error: it is not loaded, a warning is logged, and its names are missing.
        dtype: the dtype of the module's floating-point tensors: those on the meta device get it, others must have it.
            Floating-point tensors of the files are converted to it, as by ``tensor.to(dtype)``, in pieces of at most
            32 MiB. None: dtypes must be the files'.
        policy: who chooses the tool, as for :func:`fastio.load`.
        verify: compare each tensor with its checksum, if its file has one.
        group: a process group of torch.distributed, or True for the default one, whose ranks load the same files into
            equal models: a collective call. Each rank reads and compares a share of the tensors, and broadcasts it to
            the others, so all ranks together read each file once. An error of one rank is raised by all. None: the
            rank reads for itself.

    Returns:
        (missing, unexpected): names that the files lack (and those of damaged tensors), and names that the module
        lacks, sorted. Of tied tensors one name is enough; further ones in the files are unexpected, unless
        a ``.pt`` stores them as one.

    Raises:
        ModelMismatchError (a RuntimeError): names, shapes or dtypes differ, or two tensors share a part of their memory
        and were not saved so. UnsupportedError: the module holds tensors of tensors, such as DTensors. FormatError: it
        holds one that is sparse, expanded or was freed. ChecksumError (a CorruptFileError): a tensor is damaged.
        ValueError: ``device`` has none for a tensor, or a name that the module lacks, or ``dtype`` is not of
        floating-point numbers. With ``group``, ModelMismatchError: the ranks would not load the same. UnsupportedError:
        the group has no backend for a device. ValueError: there is no such group. Otherwise what
        :func:`fastio.safe_open` raises.

    >>> missing, unexpected = fastio.load_model(model, "folder", strict=False)
    """
    ranks = rank_group(group)
    with together(ranks):
        check(policy, LOAD)
        check_flag("strict", strict)
        check_flag("atomic", atomic)
        check_flag("verify", verify)
        check_backend(backend)
        place_of = present_places(device)
        if not isinstance(model, torch.nn.Module):
            if isinstance(filename, torch.nn.Module):
                raise swapped("load_model", "model", model, filename)
            raise TypeError(f"expected a module, got {type(model).__name__}; load_into fills the tensors of a dict")
        check_names(device, model)
        with gc_paused():  # a third of the time for ten thousand tensors
            found = module_tensors(model)
            load = Load("load_model", filename, strict, atomic, dtype, policy, verify, ranks)
            got = load.run(module_target(model), found, place_of)
        with got.partial.step():
            _assign(model, found, got.plan, got.new, got.filled if found.own or atomic else {}, dtype)
        warn_of_meta_buffers(model)
        loaded = {*got.plan.names}
        warn_of_other_devices(device, {name: one for name, one in found.tensors.items() if name in loaded})
        is_meta = any(tensor.is_meta for tensor in found.tensors.values())
        warn_of_nothing_loaded("load_model", "module.state_dict()", got.plan, filename, is_meta)
        missing, unexpected = got.plan.result(got.damaged)
        if got.plan.names:  # else the warning before says that all are missing
            warn_of_tensors_without_memory(model, missing)
        return missing, unexpected


def _assign(
    model: torch.nn.Module,
    found: ModuleTensors,
    plan: LoadPlan,
    loaded: dict[str, torch.Tensor],
    filled: dict[str, torch.Tensor],
    dtype: torch.dtype | None,
) -> None:
    """Give the module what was read: new tensors in the place of meta tensors, new values to all others.

    ``filled`` are its own tensors that have theirs already: where hooks see the state dict, it is complete.
    """
    replaced: dict[str, torch.Tensor] = {}
    copied: dict[str, torch.Tensor] = {}
    for name, tensor in loaded.items():
        target = found.tensors.get(name)
        if target is None or not target.is_meta:
            copied[name] = tensor
            continue
        tensor = tensor.to(wanted_dtype(target, dtype))
        is_parameter = isinstance(target, torch.nn.Parameter)
        replaced[name] = torch.nn.Parameter(tensor, requires_grad=target.requires_grad) if is_parameter else tensor
    # load_state_dict assigns each name by itself: the other names of a tensor get the very same object.
    replaced.update({name: replaced[kept] for name, kept in plan.aliases.items() if kept in replaced})
    if replaced:
        model.load_state_dict(replaced, strict=False, assign=True)
    if copied:
        model.load_state_dict({**filled, **copied}, strict=False)  # a tensor is not copied to itself
