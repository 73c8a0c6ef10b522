"""torch's settings of the moment that decide how it saves and loads."""

from __future__ import annotations

import mmap
import os
import sys
from typing import Any

import torch

_DECIDE = ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")


def skips_data() -> bool:
    """Whether the call is inside ``torch.serialization.skip_data()``."""
    serialization: Any = torch.serialization
    return bool(serialization._serialization_tls.skip_data)


def decides_weights_only() -> bool:
    """Whether an environment variable decides about ``weights_only``."""
    return any(name in os.environ for name in _DECIDE)


def maps_files() -> bool:
    """Whether loads map files. Nobody can have changed that before its module (since torch 2.7) was imported."""
    config: Any = sys.modules.get("torch.utils.serialization.config")
    return config is not None and bool(config.load.mmap)


def maps_shared() -> bool:
    """Whether files are mapped so that changes of the tensors reach the file."""
    options = getattr(torch.serialization, "get_default_mmap_options", None)  # since torch 2.4
    return options is not None and options() != mmap.MAP_PRIVATE
