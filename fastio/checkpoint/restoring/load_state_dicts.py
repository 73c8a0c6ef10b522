"""Recognizes modules and optimizers whose ``load_state_dict`` is torch's own, and lists their tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_TRUSTED_MODULES = ("torch.optim.lr_scheduler.", "torch.amp.", "torch.cuda.amp.", "fastio.checkpoint.")
_MODULE_METHODS = ("load_state_dict", "_load_from_state_dict", "set_extra_state")
_PRE_HOOKS = "_load_state_dict_pre_hooks"
_MODULE_HOOKS = (_PRE_HOOKS, "_load_state_dict_post_hooks")
_OPTIMIZER_METHODS = ("load_state_dict", "state_dict", "__setstate__")
_OPTIMIZER_HOOKS = (
    "_optimizer_load_state_dict_pre_hooks", "_optimizer_load_state_dict_post_hooks", "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
)  # fmt: skip


def loads_as_torch_does(obj: Any) -> bool:
    """Return whether ``load_state_dict`` runs torch's code only, which copies each tensor to that of the same name."""
    if isinstance(obj, torch.nn.Module):
        if torch.__future__.get_swap_module_params_on_conversion():
            return False
        return all(_is_own(module, "torch.nn.modules.", _MODULE_METHODS, _MODULE_HOOKS) for module in obj.modules())
    if isinstance(obj, torch.optim.Optimizer):
        return _is_own(obj, "torch.optim.", _OPTIMIZER_METHODS, _OPTIMIZER_HOOKS)
    return False


def changes_itself_alone(obj: Any) -> bool:
    """Return whether ``load_state_dict`` changes only the object's own tensors, as that of torch's schedulers does."""
    return loads_as_torch_does(obj) or _definer(type(obj), "load_state_dict").startswith(_TRUSTED_MODULES)


def has_load_hooks(module: torch.nn.Module) -> bool:
    """Return whether a module has pre-hooks for loading, which may give its tensors memory."""
    return any(getattr(submodule, _PRE_HOOKS, None) for submodule in module.modules())


def tensors_of(obj: Any) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Yield (keys in the state, tensor) for a module or an optimizer; a shared tensor once for each of its names."""
    if isinstance(obj, torch.nn.Module):
        for prefix, module in obj.named_modules(remove_duplicate=False):
            unsaved = getattr(module, "_non_persistent_buffers_set", ())
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and name not in unsaved:
                    yield (f"{prefix}.{name}" if prefix else name,), tensor
    elif isinstance(obj, torch.optim.Optimizer) and loads_as_torch_does(obj):
        for number, values in obj.state_dict()["state"].items():
            for name, tensor in values.items() if isinstance(values, dict) else ():
                if isinstance(tensor, torch.Tensor):
                    yield ("state", number, name), tensor


def _is_own(obj: Any, module: str, methods: tuple[str, ...], hooks: tuple[str, ...]) -> bool:
    kind = type(obj)
    return not any(getattr(obj, hook, None) for hook in hooks) and all(
        name not in vars(obj) and _definer(kind, name).startswith(module) for name in methods
    )


def _definer(kind: type, name: str) -> str:
    """Return the module, with a dot behind it, of the class in the MRO that defines a method."""
    return next(base.__module__ for base in kind.__mro__ if name in vars(base)) + "."
