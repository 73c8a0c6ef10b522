"""Devices as callers name them."""

from __future__ import annotations

import torch

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
