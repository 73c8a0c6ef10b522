"""Accelerators. Only this package knows their API; everything else asks it.

:func:`find` returns the accelerator of a device, or None for host memory. CUDA (and ROCm, which torch calls "cuda") is
built in. :func:`register` adds a kind of device that torch has a device module for.
"""

from fastio.devices.accelerator import Accelerator, Copy, Event, Mark, Stream, copy_errors, refused_copy
from fastio.devices.kinds import all_kinds, available, find, identity, in_use, of, register, usable

__all__ = [
    "Accelerator",
    "Copy",
    "Event",
    "Mark",
    "Stream",
    "all_kinds",
    "available",
    "copy_errors",
    "find",
    "identity",
    "in_use",
    "of",
    "refused_copy",
    "register",
    "usable",
]
