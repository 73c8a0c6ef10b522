"""Warns of loads that succeed, and leave a module otherwise than its caller will expect."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from fastio.errors import quoted
from fastio.files.open_file import is_path
from fastio.formats.alike_names import alike_names
from fastio.models.device_places import named_places
from fastio.models.load_plan import LoadPlan
from fastio.models.partial_load import listed

_TO_CALLER = 3  # levels of the stack: the caller of load_model or load_into


def warn_of_meta_buffers(model: torch.nn.Module) -> None:
    """Warn of buffers on the meta device that no file has, because they are not persistent."""
    left = [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
        if (buffer := module._buffers.get(name)) is not None and buffer.is_meta
    ]
    if left:
        (said,) = listed("these buffers are not persistent, so no file has them, and stay on the meta device", left)
        warnings.warn(
            f"load_model: {said}; compute them after the load, or build the module on the CPU",
            RuntimeWarning,
            stacklevel=_TO_CALLER,
        )


def warn_of_tensors_without_memory(model: torch.nn.Module, missing: Iterable[str]) -> None:
    """Warn of tensors that got no values, which ``strict=False`` allows, and have no memory.

    They are on the meta device, or belong to a lazy module that was not called yet.
    """
    kept = {*missing}
    left = [
        name
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
        if name in kept and (is_lazy(tensor) or tensor.is_meta)
    ]
    if left:
        (said,) = listed("no values were loaded for these tensors, which stay without memory", left)
        cure = "load a file that has them as well, or give the module tensors with values in their place"
        warnings.warn(f"load_model: {said}; {cure}", RuntimeWarning, stacklevel=_TO_CALLER)


def warn_of_other_devices(device: Any, loaded: dict[str, torch.Tensor]) -> None:
    """Warn of loaded tensors that had memory, and kept it, on another device than ``device`` names for them."""
    if device is None:
        return
    named = named_places(device)
    kept: dict[tuple[str, str], list[str]] = {}
    for name, tensor in loaded.items():
        place = named(name)
        if place is None or tensor.is_meta:
            continue
        here = tensor.device
        if place.type != here.type or (place.index not in (None, here.index) and here.index is not None):
            kept.setdefault((str(here), str(place)), []).append(name)
    for (found, wanted), names in kept.items():
        (said,) = listed(f"these tensors had memory on {found} and were filled there, not moved to {wanted}", names)
        cure = f"call model.to({wanted!r}), or make the module under torch.device('meta'): device= is where those go"
        warnings.warn(f"load_model: {said}; {cure}", RuntimeWarning, stacklevel=_TO_CALLER)


def warn_of_no_tensors(state: dict[str, Any]) -> None:
    """Warn of a state of other things than tensors, such as modules, into which nothing is loaded."""
    if state:
        warnings.warn(
            "load_into: nothing was loaded: the state has no tensors; of a module, give its state_dict()",
            RuntimeWarning,
            stacklevel=_TO_CALLER,
        )


def warn_of_nothing_loaded(function: str, state: str, plan: LoadPlan, filename: Any, is_meta: bool = False) -> None:
    """Warn if names are missing and none was loaded, which ``strict=False`` allows.

    ``state`` is the expression of the state dict of what was to be filled; ``is_meta``: some of it has no memory.
    """
    if plan.names or not plan.missing:
        return
    where = quoted(os.fsdecode(filename)) if is_path(filename) else "..."
    behind, before = _prefixes(plan.unexpected, plan.missing), _prefixes(plan.missing, plan.unexpected)
    if behind:
        alike = [f"{prefix}{name}" for prefix, name in behind.items()]
        prefix = quoted(next(iter(behind))[:-1])
        empty = "; before that, module.to_empty(device='cpu') gives it memory" if is_meta else ""
        others = "" if len(behind) == 1 else f" (with the prefix of your part: {len(behind)} fit)"
        call = f"fastio.load_into({{{prefix}: {state}}}, {where}, strict=False)"
        cure = f"load a part of a model as {call}{others}{empty}"
    elif before:
        alike = plan.unexpected
        prefix = quoted(next(iter(before)))
        names = f"name.removeprefix({prefix}): value for name, value in {state}.items()"
        cure = f"fill what is behind {prefix} by fastio.load_into({{{names}}}, {where}, strict=False)"
    else:
        alike = alike_names(plan.missing[0], plan.unexpected) or plan.unexpected
        cure = "name the files of this model, or rename the tensors"
    said = "; ".join(
        [*listed("expected", plan.missing), *(listed("the files have", alike) or ["the files have no tensors"]), cure]
    )
    warnings.warn(
        f"{function}: nothing was loaded from {where}; {said}",
        RuntimeWarning,
        stacklevel=_TO_CALLER,
    )


def _prefixes(longer: list[str], shorter: Iterable[str]) -> dict[str, str]:
    """What stands before names in longer names, that which stands before most of them first, each with one name."""
    among = set(shorter)
    count: Counter[str] = Counter()
    example: dict[str, str] = {}
    for name in longer:
        at = name.find(".")
        while at >= 0:
            prefix, rest = name[: at + 1], name[at + 1 :]
            if rest in among:
                count[prefix] += 1
                example.setdefault(prefix, rest)
            at = name.find(".", at + 1)
    return {prefix: example[prefix] for prefix, _ in count.most_common()}
