"""The tensors of a module by name, and which of them are tied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fastio.errors import FormatError, UnsupportedError, kind_of, quoted
from fastio.formats import dense_tensors

_PLAIN_LOADING = (torch.nn.Module._load_from_state_dict, torch.nn.modules.batchnorm._NormBase._load_from_state_dict)


class ModuleTensors(NamedTuple):
    """What a module's state dict holds.

    ``tensors`` are its parameters and buffers, themselves. ``others`` are names whose shape the module does not fix:
    extra states, and parameters of lazy modules. ``own`` are the names of submodules that do more than copy values when
    a state dict is loaded or made, with all that they contain; ``""`` is the module itself.
    """

    tensors: dict[str, torch.Tensor]
    others: set[str]
    own: set[str]


class TiedGroup(NamedTuple):
    """Names whose tensors share memory. ``covering`` are those whose tensor includes all others'; it may be empty."""

    names: list[str]
    covering: list[str]

    def kept(self, preferred: Iterable[str] = ()) -> str | None:
        """The name that stands for all: the first covering one that is preferred, else the first. None: there is none.

        So ``safetensors.torch.save_model`` and ``load_model`` choose it.
        """
        among = set(preferred).intersection(self.covering) or self.covering
        return min(among, default=None)


def module_tensors(model: torch.nn.Module) -> ModuleTensors:
    """The tensors of a module.

    UnsupportedError for tensors that hold other tensors, such as DTensors. FormatError for those that are sparse, or
    whose memory was freed.
    """
    tensors, others = {}, set()
    state, own = _walk(model)
    for name, value in state.items():
        if type(value) not in dense_tensors.PLAIN or name.endswith("_extra_state"):
            is_extra = name.rpartition(".")[2] == "_extra_state"
            if is_extra or is_lazy(value) or not isinstance(value, torch.Tensor):
                others.add(name)
                continue
            if is_tensor_of_tensors(value):
                raise UnsupportedError(
                    f"{quoted(name)} is {kind_of(value)}, which holds other tensors; load and save such a "
                    "model by torch.distributed.checkpoint with fastio.distributed"
                )
        if not value.is_meta:
            problem = dense_tensors.problem(value)
            if problem:
                raise FormatError(f"this {type(model).__name__}: {quoted(name)} {problem}")
        tensors[name] = value
    return ModuleTensors(tensors, others, own)


def _walk(model: torch.nn.Module) -> tuple[dict[str, Any], set[str]]:
    """``model.state_dict(keep_vars=True)``, and the names of the submodules with their own loading."""
    found: dict[str, Any] = {}
    own: set[str] = set()
    is_plain = True

    def visit(module: torch.nn.Module, prefix: str) -> None:
        nonlocal is_plain
        if _has_own_saving(module):
            is_plain = False
            own.add(prefix[:-1])
        elif _has_own_loading(module):
            own.add(prefix[:-1])
        found.update({prefix + name: value for name, value in module._parameters.items() if value is not None})
        hidden = module._non_persistent_buffers_set
        for name, value in module._buffers.items():
            if value is not None and name not in hidden:
                found[prefix + name] = value
        for name, child in module._modules.items():
            if child is not None:
                visit(child, f"{prefix}{name}.")

    visit(model, "")
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        own.add("")
    return (found if is_plain else dict(model.state_dict(keep_vars=True))), own


def _has_own_saving(module: torch.nn.Module) -> bool:
    kind, plain = type(module), torch.nn.Module
    return bool(
        module._state_dict_hooks
        or module._state_dict_pre_hooks
        or kind.state_dict is not plain.state_dict
        or kind._save_to_state_dict is not plain._save_to_state_dict
        or kind.get_extra_state is not plain.get_extra_state
    )


def _has_own_loading(module: torch.nn.Module) -> bool:
    return bool(
        module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
        or type(module)._load_from_state_dict not in _PLAIN_LOADING
    )


def is_within(name: str, modules: set[str]) -> bool:
    """Whether a tensor is in one of these submodules."""
    while name:
        name = name.rpartition(".")[0]
        if name in modules:
            return True
    return False


def is_tensor_of_tensors(value: torch.Tensor) -> bool:
    """Whether a tensor has no memory of its own, but holds other tensors, as a DTensor does."""
    return bool(is_traceable_wrapper_subclass(value))


def tied_groups(tensors: Mapping[str, torch.Tensor]) -> list[TiedGroup]:
    """Find the names whose tensors share memory, or are one and the same tensor on the meta device."""
    same: dict[Any, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.numel() == 0:
            continue  # it shares no memory, and the other libraries store each
        if tensor.is_meta:
            same.setdefault(id(tensor), []).append((0, 1, name))
        else:
            where = (tensor.device, tensor.untyped_storage().data_ptr())
            same.setdefault(where, []).append((*dense_tensors.span(tensor), name))
    groups = []
    for spans in same.values():
        if len(spans) == 1:
            continue
        for group in _overlapping(sorted(spans)):
            if len(group) > 1:
                begin, end = min(span[0] for span in group), max(span[1] for span in group)
                covering = sorted(name for first, last, name in group if (first, last) == (begin, end))
                groups.append(TiedGroup([name for *_, name in group], covering))
    return groups


def _overlapping(spans: list[tuple[int, int, str]]) -> list[list[tuple[int, int, str]]]:
    """Sorted spans of memory, put together where they overlap."""
    groups: list[list[tuple[int, int, str]]] = []
    end = -1
    for span in spans:
        if groups and span[0] < end:
            groups[-1].append(span)
        else:
            groups.append([span])
        end = max(end, span[1])
    return groups
