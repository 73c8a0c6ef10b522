"""Runs the user's optimizer on host memory: the same class, settings and state, on other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from fastio.errors import kind_of
from fastio.hybrid.errors import HybridError

KNOWN = (Adam, AdamW, SGD)
_SCALERS = ("grad_scale", "found_inf")


def settings_of(optimizer: Optimizer) -> dict[str, Any]:
    """Return the optimizer's class and the numbers among its groups' settings, each with a name."""
    found: dict[str, Any] = {"the optimizer's class": type(optimizer).__name__}
    for number, group in enumerate(optimizer.param_groups):
        found[f"the size of group {number} of the optimizer"] = len(group["params"])
        for name, value in sorted(group.items()):
            plain = value.tolist() if isinstance(value, torch.Tensor) else value
            several = plain if isinstance(plain, list | tuple) else [plain]
            if name != "params" and all(one is None or isinstance(one, bool | int | float) for one in several):
                found[f"{name} of group {number} of the optimizer"] = plain
    return found


class CpuOptimizer:
    """Runs an optimizer's own step on some tensors at a time, with its current settings.

    Tensors are updated independently, so parts of a model in any order give the same bits as the whole. ``fuse``: use
    torch's fused kernels if the user did not choose an implementation.
    """

    def __init__(self, optimizer: Optimizer, fuse: bool) -> None:
        self._optimizer = optimizer
        self._fuse = fuse
        kind = type(optimizer)
        self._own: Optimizer = kind.__new__(kind)
        # As if unpickled: the same optimizer without the hooks of the user's.
        self._own.__setstate__({"defaults": dict(optimizer.defaults), "state": {}, "param_groups": []})
        step: Any = kind.step
        self._step = getattr(step, "__wrapped__", step)  # without global optimizer hooks and profiler marks

    def update(self, parts: Iterable[tuple[int, torch.Tensor]], states: dict[torch.Tensor, dict[str, Any]]) -> None:
        """Run one step for (group number, tensor with ``grad``) pairs; ``states`` is updated."""
        chosen: dict[int, list[torch.Tensor]] = {}
        for group, tensor in parts:
            chosen.setdefault(group, []).append(tensor)
        groups = [self._settings(number, tensors) for number, tensors in chosen.items()]
        self._own.param_groups = groups
        self._own.state = states  # type: ignore[assignment]
        for name in _SCALERS:  # with a GradScaler, a fused step unscales, and decides whether to step
            setattr(self._own, name, _on_host(getattr(self._optimizer, name, None)))
        self._step(self._own)

    def _settings(self, number: int, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        given = self._optimizer.param_groups[number].items()
        group = {name: tensors if name == "params" else _on_host(value) for name, value in given}
        if not self._fuse or group.get("fused") is not None or group.get("foreach"):
            return group
        if all(tensor.is_floating_point() for tensor in tensors):  # torch fuses only floating-point tensors
            group["fused"], group["foreach"] = True, False
        return group


def _on_host(value: Any) -> Any:
    """Return a setting with its values in host memory: a GradScaler's, or a learning rate on a GPU.

    The wait for them is needed. torch's fused steps copy with ``non_blocking=True``, and then read at once.
    """
    return value.cpu() if isinstance(value, torch.Tensor) else value


def check_optimizer(optimizer: Any) -> None:
    """Raise TypeError for an optimizer not in :data:`KNOWN`, HybridError for settings that need a GPU."""
    if type(optimizer) not in KNOWN:
        raise TypeError(
            f"optimizer is {kind_of(optimizer)}: expected torch.optim's Adam, AdamW or SGD, which Hybrid updates"
        )
    for number, group in enumerate(optimizer.param_groups):
        for setting in ("capturable", "differentiable"):
            if group.get(setting):
                raise HybridError(
                    f"group {number} of the optimizer has {setting}=True, and the update runs on the CPU: leave it out"
                )


def state_to_host(optimizer: Optimizer) -> None:
    """Move the optimizer's state to host memory, if it is on a GPU or was loaded for one."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                state[key] = value.cpu()
