"""Finds out whether a module or an optimizer would refuse a saved state, before anything is overwritten."""

from __future__ import annotations

from typing import Any

import torch

from fastio.checkpoint.restoring.load_state_dicts import loads_as_torch_does, tensors_of
from fastio.errors import quoted

_SHOWN = 4
# What modules of torch take without: states that older versions saved lack it.
_OPTIONAL = "num_batches_tracked"


def mismatch(live: Any, saved: Any) -> str:
    """Say why torch's own ``load_state_dict`` of ``live`` would refuse ``saved``; an empty text if it would not.

    Names and shapes of a module's tensors, and the parameter groups of an optimizer, are compared. Objects with another
    ``load_state_dict`` are not looked at.
    """
    if not isinstance(saved, dict) or not loads_as_torch_does(live):
        return ""
    if isinstance(live, torch.nn.Module):
        return _of_module({name: tensor for (name,), tensor in tensors_of(live)}, saved)
    return _of_optimizer([len(group["params"]) for group in live.param_groups], saved.get("param_groups"))


def _of_module(live: dict[str, torch.Tensor], saved: dict[str, Any]) -> str:
    problems = []
    for name, tensor in live.items():
        found = saved.get(name)
        if name not in saved:
            if not name.endswith(_OPTIONAL):
                problems.append(f"{quoted(name)} was not saved")
        elif isinstance(found, torch.Tensor) and _differ(found, tensor):
            problems.append(f"{quoted(name)} has shape {tuple(tensor.shape)}, saved was {tuple(found.shape)}")
    lacking = [name for name in saved if name not in live and not str(name).endswith("_extra_state")]
    problems += [f"{quoted(name)} was saved, and the module lacks it" for name in lacking]
    more = f", and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    return ", ".join(problems[:_SHOWN]) + more


def _differ(saved: torch.Tensor, live: torch.Tensor) -> bool:
    """Whether the shapes differ; torch takes the first of a list of numbers for a single one."""
    return saved.shape != live.shape and not (live.dim() == 0 and saved.dim() == 1)


def _of_optimizer(live: list[int], groups: Any) -> str:
    if not isinstance(groups, list):
        return ""
    saved = [len(group.get("params", ())) for group in groups if isinstance(group, dict)]
    if saved == live:
        return ""
    return f"its groups have {', '.join(map(str, live))} parameters, saved were {', '.join(map(str, saved))}"
