"""Saves and restores through memory with torch's own functions if fastio does not support its serialization.

That is slower, and as safe.
"""

from __future__ import annotations

import io
import os
from typing import Any

import torch

from fastio.checkpoint.folder.manifest import Manifest
from fastio.errors import UnsupportedError
from fastio.formats.layout import Layout, address_of
from fastio.formats.pt import torch_probe
from fastio.transports.transport import Extent


def image_of(state: Any, pickle_module: Any) -> bytearray:
    """Return the whole file that torch.save writes with this pickle module, in memory: a snapshot."""
    buffer = io.BytesIO()
    torch.serialization.save(state, buffer, pickle_module=pickle_module)
    return bytearray(buffer.getbuffer())


def layout_of(image: bytearray) -> Layout:
    """Return the layout of a file of these bytes."""
    extents = [Extent(0, len(image), address_of(image), False, "cpu", image, "")]
    return Layout(len(image), extents, (), len(image), frozenset(), image)


def load(folder: str, manifest: Manifest, device: torch.device, weights_only: bool) -> Any:
    """Return the state of a step, in new memory. Its bytes must have been checked."""
    if manifest.elsewhere:
        raise UnsupportedError(
            f"{folder}: this step refers to others, and only a fastio that supports this torch can read it: "
            f"{torch_probe.unsupported_reason()}; install a newer fastio"
        )
    path = os.path.join(folder, manifest.files[0].name)
    return torch.serialization.load(path, map_location=device, weights_only=weights_only)
