"""Devices as callers name them."""

from __future__ import annotations

import torch

from fastio.devices import kinds
from fastio.errors import UnsupportedError, kind_of, quoted


def named_device(argument: str, device: object) -> torch.device:
    """The device that a caller gave as this argument; None is the CPU.

    TypeError for what is neither a device, nor a name, nor a number; UnsupportedError (a RuntimeError, as
    torch raises) for a name that torch does not know.
    """
    if device is None:
        return torch.device("cpu")
    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        raise TypeError(
            f"{argument}={quoted(device)} is {kind_of(device)}: expected one device, such as 'cpu' or 'cuda:0'"
        )
    try:
        return torch.device(device)
    except RuntimeError:
        raise UnsupportedError(
            f"{argument}={quoted(device)}: torch knows no such device; expected 'cpu', or an accelerator's name or "
            "number, such as 'cuda:0'"
        ) from None


def present_device(argument: str, device: object) -> torch.device:
    """As :func:`named_device`; UnsupportedError, too, for a kind of device that this torch does not find here."""
    found = named_device(argument, device)
    said = _why_absent(found)
    if said:
        raise UnsupportedError(f"{argument}={quoted(device)}: {said}; or name a device of this machine, such as 'cpu'")
    return found


def _why_absent(device: torch.device) -> str:
    """Why torch cannot use the kind of device here, and the cure; empty if it can."""
    if device.type in ("cpu", "meta"):
        return ""
    accelerator = kinds.find(device)
    if accelerator is not None:
        return "" if accelerator.is_available() else "; ".join(accelerator.why_unavailable())
    try:
        torch.empty(0, device=device)
    except (AssertionError, ImportError, RuntimeError) as error:  # by kind: torch has no error of its own for this
        said = str(error).partition(". ")[0].rstrip(".")
        return f"torch cannot use {device.type} devices here ({said}); install a torch that is built for them"
    return ""
