"""Formats: where each tensor's bytes lie in a file. No payload is moved here."""

from __future__ import annotations

import importlib
from typing import Any


def module(form: str) -> Any:
    """The module of a format that is one object, one layout (safetensors, npy), imported on first use."""
    return importlib.import_module(f"fastio.formats.{form}")
