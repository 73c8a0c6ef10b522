"""The tensors of a module by name, and which of them are tied."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from fastio.errors import UnsupportedError, quoted
from fastio.formats import dense_tensors

_PLAIN_LOADING = (torch.nn.Module._load_from_state_dict, torch.nn.modules.batchnorm._NormBase._load_from_state_dict)


class ModuleTensors(NamedTuple):
    """What a module's state dict holds.

    ``tensors`` are its parameters and buffers, themselves. ``others`` are names whose shape the module does not fix:
    extra states, and parameters of lazy modules.
    """

    tensors: dict[str, torch.Tensor]
    others: set[str]


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
    for name, value in model.state_dict(keep_vars=True).items():
        is_extra = name.rpartition(".")[2] == "_extra_state"
        if is_extra or is_lazy(value) or not isinstance(value, torch.Tensor):
            others.add(name)
        elif is_tensor_of_tensors(value):
            raise UnsupportedError(
                f"{quoted(name)} is a {type(value).__name__}, which holds other tensors; load and save such a model "
                "by torch.distributed.checkpoint with fastio.distributed"
            )
        else:
            if not value.is_meta:
                dense_tensors.check(f"this {type(model).__name__}", quoted(name), value)
            tensors[name] = value
    return ModuleTensors(tensors, others)


def is_tensor_of_tensors(value: torch.Tensor) -> bool:
    """Whether a tensor has no memory of its own, but holds other tensors, as a DTensor does."""
    return bool(is_traceable_wrapper_subclass(value))


def own_loading(model: torch.nn.Module) -> set[str]:
    """The names of submodules that do more than copy values when a state dict is loaded or made; ``""`` is the model.

    Hooks of a submodule, and methods that it overrides, see it with all that it contains.
    """
    if type(model).load_state_dict is not torch.nn.Module.load_state_dict:
        return {""}
    if not any(map(_has_own_loading, model.modules())):  # takes half the time of finding the names
        return set()
    return {name for name, module in model.named_modules(remove_duplicate=False) if _has_own_loading(module)}


def _has_own_loading(module: torch.nn.Module) -> bool:
    kind = type(module)
    return bool(
        module._load_state_dict_pre_hooks
        or module._load_state_dict_post_hooks
        or module._state_dict_hooks
        or kind._load_from_state_dict not in _PLAIN_LOADING
        or kind._save_to_state_dict is not torch.nn.Module._save_to_state_dict
        or kind.state_dict is not torch.nn.Module.state_dict
    )


def is_within(name: str, modules: set[str]) -> bool:
    """Whether a tensor is in one of these submodules."""
    while name:
        name = name.rpartition(".")[0]
        if name in modules:
            return True
    return False


def tied_groups(tensors: Mapping[str, torch.Tensor]) -> list[TiedGroup]:
    """Find the names whose tensors share memory, or are one and the same tensor on the meta device."""
    same: dict[Any, list[tuple[int, int, str]]] = {}
    for name, tensor in tensors.items():
        if tensor.is_meta or tensor.numel() == 0:
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
