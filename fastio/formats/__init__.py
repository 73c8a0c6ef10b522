"""Formats: where each tensor's bytes lie in a file. This package moves no payload."""

from __future__ import annotations

from typing import Any

from fastio.formats import dense_tensors, npy
from fastio.formats.detect import NPY, SAFETENSORS
from fastio.formats.layout import Layout
from fastio.formats.safetensors import format as safetensors_format

# Imported here, not on first use: by then the process may have given up the right to read the installation.
_MODULES = {SAFETENSORS: safetensors_format, NPY: npy}


def module(file_format: str) -> Any:
    """The module of a format whose files hold tensors and no pickle."""
    return _MODULES[file_format]


def lay_out(file_format: str, obj: Any, path: str, arguments: dict[str, Any]) -> Layout:
    """Lay out an object in such a format.

    TypeError for an argument that the format lacks, FormatError for an object that it cannot hold, UnsupportedError
    inside FakeTensorMode.
    """
    unknown = arguments.keys() - ({"metadata", "checksums", "hashes"} if file_format == SAFETENSORS else set())
    if unknown:
        raise TypeError(f"{file_format} takes none of torch.save's arguments, got {', '.join(sorted(unknown))}")
    dense_tensors.check_mode(path, file_format)
    found: Layout = module(file_format).layout(obj, path, **arguments)
    return found
