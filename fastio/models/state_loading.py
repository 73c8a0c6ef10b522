"""load_into: from files straight into the tensors of a state dict."""

from __future__ import annotations

from typing import Any

import torch

from fastio.engine.tool_selection import check
from fastio.errors import FormatError, UnsupportedError, quoted
from fastio.formats import dense_tensors
from fastio.formats.named_tensors import named_tensors
from fastio.models.load_plan import STATE, plan_load
from fastio.models.module_loading import read_in_place, read_new
from fastio.models.module_tensors import ModuleTensors, is_tensor_of_tensors
from fastio.models.weight_files import open_weights
from fastio.runtime.gc_pause import gc_paused
from fastio.transports.transport import LOAD

_CPU = torch.device("cpu")


def load_into(
    state: Any, filename: Any, strict: bool = True, *, atomic: bool = True, policy: Any = "auto", verify: bool = True
) -> tuple[list[str], list[str]]:
    """Load the tensors of files into those of a state dict, which keep their memory and get new values.

    Names, shapes and dtypes are compared before the first byte is read. Names are keys, those of nested dicts and lists
    joined by dots, in the state and in a ``.pt``. What is no tensor stays as it is.

    Args:
        state: a dict of tensors with memory, on any device, also nested: a module's ``state_dict()``, a checkpoint.
        filename: a file, a list of files, an index or a folder, as for :func:`fastio.safe_open`.
        strict: raise for names that only the files or only the state have, and for damaged tensors. With False, a
            tensor that does not match its checksum is not loaded: a warning is logged, and its names are missing.
        atomic: read everything before the first tensor changes, so that an error leaves the state as it was; this needs
            its memory a second time. With False, tensors are read straight into their memory: after an error, the
            values are a mixture, and must be loaded again.
        policy: who chooses the tool, as for :func:`fastio.load`.
        verify: compare each tensor with its checksum, if the files have them. With ``atomic=False``, damage is an error
            whatever ``strict`` is.

    Returns:
        (missing, unexpected): names that the files lack, and names that the state lacks, sorted. Of tensors that share
        their memory one name is enough; further ones in the files are unexpected, unless a ``.pt`` stores them as one.

    Raises:
        ModelMismatchError (a RuntimeError): names, shapes or dtypes differ. FormatError: a tensor has no memory, or two
        have one name. UnsupportedError: it holds other tensors, as a DTensor does. Otherwise what
        :func:`fastio.safe_open` raises.

    >>> fastio.load_into(model.state_dict(), "model.pt")
    ([], [])
    """
    check(policy, LOAD)
    with gc_paused():  # as in load_model
        found = _tensors_of(state)
        with open_weights(filename, verify) as files:
            plan = plan_load(STATE, found, files, strict)
            names = plan.names if atomic else read_in_place(found, plan, files, policy)
            loaded, damaged = read_new(found, names, files, _CPU, policy, skip_damaged=atomic and not strict)
    for name, tensor in loaded.items():
        target = found.tensors[name]
        with torch.inference_mode(target.is_inference()), torch.no_grad():
            target.copy_(tensor)
    return plan.result(damaged)


def _tensors_of(state: Any) -> ModuleTensors:
    if not isinstance(state, dict):
        raise TypeError(f"expected a dict of tensors, got {type(state).__name__}")
    tensors = dict(named_tensors("the state", state))
    for name, tensor in tensors.items():
        if is_tensor_of_tensors(tensor):
            raise UnsupportedError(
                f"the state: {quoted(name)} is a {type(tensor).__name__}, which holds other tensors; load into those"
            )
        dense_tensors.check("the state", quoted(name), tensor)
        if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
            raise FormatError(f"the state: {quoted(name)} is expanded: its elements share memory; give it a clone()")
    return ModuleTensors(tensors, set())
