"""Volumes: a regular file or an NVMe namespace that holds named objects, without a filesystem.

An object has the bytes that a file would have: ``.pt``, ``.safetensors`` or ``.npy``. docs/volumes.md describes the
format on the device.
"""

import typing as _typing
from importlib import import_module as _import_module

# Imported when they are first used: every save and load imports this package, and few are of volumes.
if _typing.TYPE_CHECKING:
    from fastio.volumes.journal import ObjectEntry
    from fastio.volumes.volume import Volume

_LATER = {"ObjectEntry": "journal", "Volume": "volume"}

if not _typing.TYPE_CHECKING:  # a checker that saw it would accept any name

    def __getattr__(name: str) -> object:
        """Import what is used for the first time."""
        if name in _LATER:
            return getattr(_import_module(f"{__name__}.{_LATER[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["ObjectEntry", "Volume"]
