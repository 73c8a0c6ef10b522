"""Volumes: a regular file or an NVMe namespace that holds named objects, without a filesystem.

An object has the bytes that a file would have: ``.pt``, ``.safetensors`` or ``.npy``. docs/volumes.md describes the
format on the device.
"""

from fastio.volumes.journal import ObjectEntry
from fastio.volumes.volume import Volume

__all__ = ["ObjectEntry", "Volume"]
