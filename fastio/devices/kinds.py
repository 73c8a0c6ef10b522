"""The kinds of accelerators that fastio knows."""

from __future__ import annotations

import functools

import torch

from fastio.devices.accelerator import Accelerator
from fastio.devices.cuda import Cuda

_kinds: dict[str, Accelerator] = {"cuda": Cuda()}


def register(accelerator: Accelerator) -> None:
    """Add a kind of accelerator, or replace it. torch must know its devices."""
    _kinds[accelerator.kind] = accelerator


def all_kinds() -> frozenset[str]:
    """The types of device that fastio can use, here or elsewhere."""
    return frozenset(_kinds)


def available() -> list[Accelerator]:
    """The accelerators of which this machine has a device."""
    return [accelerator for accelerator in _kinds.values() if accelerator.is_available()]


def in_use() -> bool:
    """Whether this process uses an accelerator already. It does not begin to."""
    return any(accelerator.is_initialized() for accelerator in _kinds.values())


def find(device: torch.device | str) -> Accelerator | None:
    """The accelerator of a device or a type of device; None for host memory and for kinds that fastio cannot use."""
    return _kinds.get(device.type if isinstance(device, torch.device) else _kind(device))


def identity(*used: torch.device) -> str:
    """What dictionaries call these devices: ``"cpu"`` if all are the host, else the identity of one that is not.

    See :meth:`Accelerator.identity`.
    """
    return min((_identity(device) for device in used if device.type != "cpu"), default="cpu")


@functools.cache
def _identity(device: torch.device) -> str:
    accelerator = find(device)
    if accelerator is None or not accelerator.is_available():
        return device.type
    return accelerator.identity(accelerator.with_index(device))


def usable(device: torch.device) -> bool:
    """Whether it is host memory or an accelerator that fastio can use."""
    return device.type == "cpu" or device.type in _kinds


def of(device: torch.device | str) -> Accelerator:
    """As :func:`find`; KeyError where there is none."""
    return _kinds[_kind(device)]


def _kind(device: torch.device | str) -> str:
    return device.type if isinstance(device, torch.device) else device.partition(":")[0]
