"""What a caller gives to be saved, as torch can pickle it: whatever has a state gives it."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch


def is_stateful(thing: Any) -> bool:
    """Whether it is a module, an optimizer, a scheduler, a data loader, ...: what gives its state and takes it back."""
    return (
        not isinstance(thing, (type, torch.Tensor))
        and callable(getattr(thing, "state_dict", None))
        and callable(getattr(thing, "load_state_dict", None))
    )


def captured(thing: Any) -> Any:
    """The same tree of dicts, lists and tuples, with states in the place of what has one. No tensor is copied."""
    if is_stateful(thing):
        return thing.state_dict()
    if isinstance(thing, torch.Generator):
        return thing.get_state()
    if type(thing) in (OrderedDict, Counter):
        made = type(thing)()
        made.__dict__.update(thing.__dict__)  # a module's state has its ``_metadata`` there
        for key, value in thing.items():
            made[key] = captured(value)
        return made
    if isinstance(thing, Mapping) and type(thing).__module__ in ("builtins", "collections"):
        return {key: captured(value) for key, value in thing.items()}
    if type(thing) is list:
        return [captured(value) for value in thing]
    if type(thing) is tuple:
        return tuple(captured(value) for value in thing)
    return thing
