"""load_into: from files straight into the tensors of a state dict."""

from __future__ import annotations

from typing import Any

import torch

from fastio.arguments import Group, Policy, Weights
from fastio.engine.call_checks import check_flag, swapped
from fastio.engine.tool_selection import check
from fastio.errors import UnsupportedError, kind_of, quoted
from fastio.formats import dense_tensors
from fastio.formats.named_tensors import named_tensors
from fastio.models.device_places import present_places
from fastio.models.in_place import copy_into
from fastio.models.load_plan import STATE
from fastio.models.load_warnings import warn_of_no_tensors, warn_of_nothing_loaded
from fastio.models.loading import Load
from fastio.models.module_tensors import ModuleTensors, is_tensor_of_tensors
from fastio.models.rank_group import rank_group, together
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD


def load_into(
    state: dict[str, Any],
    filename: Weights,
    strict: bool = True,
    *,
    atomic: bool = False,
    dtype: torch.dtype | None = None,
    policy: Policy = "auto",
    verify: bool = True,
    group: Group = None,
) -> tuple[list[str], list[str]]:
    """Load the tensors of files into those of a state dict, which keep their memory and get new values.

    All that can be known is checked before the first tensor changes, as for :func:`fastio.load_model`. Names are keys,
    those of nested dicts and lists joined by dots, in the state and in a ``.pt``. What is no tensor stays as it is.

    Args:
        state: a dict of tensors with memory, on any device, also nested: a module's ``state_dict()``, a checkpoint.
        filename: a file, a list of files, an index or a folder, as for :func:`fastio.safe_open`.
        strict: raise for names that only the files or only the state have. Without it, a RuntimeWarning says so if
            nothing is loaded.
        atomic: read everything before the first tensor changes, so that an error leaves the state as it was; this needs
            its memory a second time. By default tensors are filled where they are: an error of the disk or a damaged
            tensor then leaves the state partly filled, and its message says with which tensors. With both ``atomic``
            and ``strict=False``, a damaged tensor is no error: it is not loaded, a warning is logged, and its names are
            missing.
        dtype: the dtype of the state's floating-point tensors. Those of the files are converted to it, as by
            ``tensor.to(dtype)``. None: dtypes must be the files'.
        policy: who chooses the tool, as for :func:`fastio.load`.
        verify: compare each tensor with its checksum, if the files have them.
        group: a process group whose ranks load the same files into equal states, as for :func:`fastio.load_model`.

    Returns:
        (missing, unexpected): names that the files lack, and names that the state lacks, sorted. Of tensors that share
        their memory one name is enough; further ones in the files are unexpected, unless a ``.pt`` stores them as one.

    Raises:
        ModelMismatchError (a RuntimeError): names, shapes or dtypes differ, or two tensors share a part of their memory
        and were not saved so. FormatError: a tensor has no memory, or two have one name. UnsupportedError: it holds
        other tensors, as a DTensor does. ChecksumError (a CorruptFileError): a tensor is damaged. Otherwise what
        :func:`fastio.safe_open` raises.

    >>> fastio.load_into(model.state_dict(), "model.pt")
    ([], [])
    """
    ranks = rank_group(group)
    with together(ranks):
        check(policy, LOAD)
        check_flag("strict", strict)
        check_flag("atomic", atomic)
        check_flag("verify", verify)
        with gc_paused():  # as in load_model
            if isinstance(filename, dict) and not isinstance(state, dict):
                raise swapped("load_into", "state", state, filename)
            found = _tensors_of(state)
            load = Load("load_into", filename, strict, atomic, dtype, policy, verify, ranks)
            got = load.run(STATE, found, present_places(None))
        for name, tensor in got.new.items():
            copy_into(found.tensors[name], tensor)
        warn_of_nothing_loaded("load_into", "state", got.plan, filename)
        if not found.tensors:
            warn_of_no_tensors(state)
        return got.plan.result(got.damaged)


def _tensors_of(state: Any) -> ModuleTensors:
    if not isinstance(state, dict):
        raise TypeError(f"expected a dict of tensors, got {type(state).__name__}")
    tensors = dict(named_tensors("the state", state))
    for name, tensor in tensors.items():
        if is_tensor_of_tensors(tensor):
            raise UnsupportedError(
                f"the state: {quoted(name)} is {kind_of(tensor)}, which holds other tensors; load into those"
            )
        dense_tensors.check("the state", quoted(name), tensor)
    return ModuleTensors(tensors, set(), set())
