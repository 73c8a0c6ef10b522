"""The context of a transfer: the key of a dictionary, except the size."""

from __future__ import annotations

from typing import NamedTuple

from fastio.transports.transport import LOAD, SAVE

FEW_EXTENTS = 8

_KIB = 1024


class Context(NamedTuple):
    """The circumstances of a transfer: all of the key but the size. Fastensor's key is the size alone (section 4)."""

    op: str
    """``"save"`` or ``"load"``."""
    format: str
    """``"pt"``, ``"safetensors"``, ``"npy"`` or what a plug-in names its own; ``"in place"``: into used memory."""
    device: str
    """``"cpu"``, or type and model of the device, such as ``"cuda NVIDIA H100 80GB HBM3"``."""
    durable: bool | None = None
    """Saves: whether the time includes the fsync. None for loads."""
    resident: bool | None = None
    """Loads: whether the page cache held the file. None for saves."""
    small: int = 0
    """The class of the mean extent's size, from :func:`small_class`."""


def small_class(nbytes: int, extents: int) -> int:
    """The class of the mean extent's size: 0 for at least 1 MiB or a few extents, 1 from 64 KiB, 2 from 4 KiB, 3 below.

    With up to 8 extents the total size determines the time, so they share class 0.
    """
    if extents <= FEW_EXTENTS:
        return 0
    mean = nbytes / extents
    return 0 if mean >= 1024 * _KIB else 1 if mean >= 64 * _KIB else 2 if mean >= 4 * _KIB else 3


def save_context(file_format: str, device: str, durable: bool, nbytes: int, extents: int) -> Context:
    """The key for a save of ``nbytes`` tensor bytes in ``extents`` storages."""
    return Context(SAVE, file_format, device, durable, None, small_class(nbytes, extents))


def load_context(file_format: str, device: str, resident: bool, nbytes: int, extents: int) -> Context:
    """The key for a load; ``resident`` is whether the page cache holds the file."""
    return Context(LOAD, file_format, device, None, resident, small_class(nbytes, extents))
