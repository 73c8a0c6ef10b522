"""Formats: where each tensor's bytes lie in a file. No payload is moved here."""

from __future__ import annotations

import importlib
from typing import Any

from fastio.formats import dense_tensors
from fastio.formats.detect import SAFETENSORS
from fastio.formats.layout import Layout


def module(form: str) -> Any:
    """The module of a format that is one object, one layout (safetensors, npy), imported on first use."""
    return importlib.import_module(f"fastio.formats.{form}")


def lay_out(form: str, obj: Any, path: str, arguments: dict[str, Any]) -> Layout:
    """Lay out an object in such a format.

    TypeError for an argument that the format has not, FormatError for what it cannot hold, UnsupportedError inside
    FakeTensorMode.
    """
    unknown = arguments.keys() - ({"metadata"} if form == SAFETENSORS else set())
    if unknown:
        raise TypeError(f"{form} takes none of torch.save's arguments, got {', '.join(sorted(unknown))}")
    dense_tensors.check_mode(path, form)
    found: Layout = module(form).layout(obj, path, **arguments)
    return found
