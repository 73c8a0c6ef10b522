"""On which device a load makes each tensor: one device for all, or a map of prefixes of names to devices."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastio.devices.argument import named_device, present_device
from fastio.errors import quoted
from fastio.formats.alike_names import alike_names


def named_places(device: Any) -> Callable[[str], torch.device | None]:
    """Return the function that gives the device that ``device`` names for a tensor, by the tensor's name.

    ``device`` is None for the CPU, a device, or a map of names of submodules, parameters or buffers to devices: the
    longest that a name begins with, up to a dot, counts; ``""`` is for all others. The function returns None for a name
    that the map has no device for.

    ValueError for the meta device; TypeError and UnsupportedError for what names no device.
    """
    given = device if isinstance(device, Mapping) else {"": device}
    places = {_prefix(prefix): _named(one) for prefix, one in given.items()}

    def place(name: str) -> torch.device | None:
        prefix = name
        while prefix not in places:
            if not prefix:
                return None
            prefix = prefix.rpartition(".")[0]
        return places[prefix]

    return place


def present_places(device: Any) -> Callable[[str], torch.device]:
    """Return the function that gives the device on which a load makes a tensor, as :func:`named_places` does.

    Besides, the function raises ValueError for a name that the map has no device for, and UnsupportedError for a device
    that torch does not find here.
    """
    named, present = named_places(device), functools.cache(functools.partial(present_device, "device"))

    def place(name: str) -> torch.device:
        found = named(name)
        if found is None:
            raise ValueError(f"device has no entry for {quoted(name)}: name one of its modules, or '' for all others")
        return present(str(found))

    return place


def check_names(device: Any, model: torch.nn.Module) -> None:
    """Raise ValueError for a name in a map of devices that no submodule, parameter or buffer of the module has."""
    if not isinstance(device, Mapping):
        return
    parts = (model.named_modules, model.named_parameters, model.named_buffers)
    names = {name for part in parts for name, _ in part(remove_duplicate=False)}
    for prefix in device:
        if prefix not in names:
            alike = alike_names(prefix, names)
            cure = f"alike: {', '.join(map(quoted, alike))}" if alike else "model.named_modules() lists the names"
            raise ValueError(
                f"device has the key {quoted(prefix)}, which is no name in this {type(model).__name__}; {cure}"
            )


def _prefix(prefix: Any) -> str:
    if not isinstance(prefix, str):
        raise TypeError(f"device has the key {quoted(prefix)}: expected the name of a submodule, or ''")
    return prefix


def _named(device: Any) -> torch.device:
    found = named_device("device", device)
    if found.type == "meta":
        raise ValueError("device='meta': tensors there have no memory to load into; name the device to create them on")
    return found
