"""The user's optimizer at work on host memory: the same class, settings and state, on other tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from fastio.hybrid.errors import HybridError

KNOWN = (Adam, AdamW, SGD)
_SCALERS = ("grad_scale", "found_inf")


class Worker:
    """Runs an optimizer's own step on some tensors at a time, with its settings of that moment.

    Each tensor is updated as it would be alone, so parts of a model, in any order, give the bits that the whole gives.
    ``fuse``: use torch's fused kernels where the user did not say which implementation to use.
    """

    def __init__(self, optimizer: Optimizer, fuse: bool) -> None:
        self._optimizer = optimizer
        self._fuse = fuse
        kind = type(optimizer)
        self._own: Optimizer = kind.__new__(kind)
        # As unpickled: the same optimizer, without the hooks that belong to the user's.
        self._own.__setstate__({"defaults": dict(optimizer.defaults), "state": {}, "param_groups": []})
        step: Any = kind.step
        self._step = getattr(step, "__wrapped__", step)  # without the hooks for all optimizers and the profiler's mark

    def update(self, parts: Iterable[tuple[int, torch.Tensor]], states: dict[torch.Tensor, dict[str, Any]]) -> None:
        """One step for tensors that have their ``grad``, each with the number of its group; ``states`` is kept up."""
        chosen: dict[int, list[torch.Tensor]] = {}
        for group, tensor in parts:
            chosen.setdefault(group, []).append(tensor)
        groups = [self._settings(number, tensors) for number, tensors in chosen.items()]
        self._own.param_groups = groups
        self._own.state = states  # type: ignore[assignment]
        for name in _SCALERS:  # a GradScaler leaves unscaling, and whether to step at all, to a fused step
            setattr(self._own, name, getattr(self._optimizer, name, None))
        self._step(self._own)

    def _settings(self, number: int, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        group = {**self._optimizer.param_groups[number], "params": tensors}
        if not self._fuse or group.get("fused") is not None or group.get("foreach"):
            return group
        if all(tensor.is_floating_point() for tensor in tensors):  # torch fuses no others
            group["fused"], group["foreach"] = True, False
        return group


def refuse(optimizer: Any) -> None:
    """Raise TypeError for an optimizer that is none of :data:`KNOWN`, HybridError for settings that need a GPU."""
    if type(optimizer) not in KNOWN:
        raise TypeError(
            f"optimizer is a {type(optimizer).__name__}: Hybrid updates torch.optim's Adam, AdamW and SGD; use one of "
            f"them"
        )
    for number, group in enumerate(optimizer.param_groups):
        for setting in ("capturable", "differentiable"):
            if group.get(setting):
                raise HybridError(
                    f"group {number} of the optimizer has {setting}=True, and the update runs on the CPU: leave it out"
                )


def to_host(optimizer: Optimizer) -> None:
    """Bring the optimizer's state to host memory, where a GPU held it or a checkpoint was loaded for one."""
    for state in optimizer.state.values():
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                state[key] = value.cpu()
