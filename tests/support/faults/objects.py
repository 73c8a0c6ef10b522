"""Objects with a version that can be verified bit for bit, in every format; and the formats' own libraries."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy
import safetensors.torch
import torch

OLD, NEW = 1, 2
FORMATS = ("pt", "safetensors", "npy")


def format_of(path: str | os.PathLike[str]) -> str:
    """The format of a file of that name."""
    return os.path.splitext(path)[1][1:]


@functools.lru_cache(maxsize=8)
def make(version: int, nbytes: int = 3 << 20, form: str = "pt") -> Any:
    """About ``nbytes`` bytes of one version: a state dict, or for ``npy`` one tensor.

    The dict has large, small, odd, 0-dim, empty and, except for ``safetensors``, which does not support them, tied
    tensors. Do not modify it: the result is cached.
    """
    generator = torch.Generator().manual_seed(version)
    large = torch.randint(-(1 << 31), 1 << 31, (nbytes // 4,), generator=generator, dtype=torch.int32)
    if form == "npy":
        large[0] = version
        return large.view(-1, 2)
    state = {
        "large": large,
        "tied": large[5:77],
        "odd": torch.randint(0, 256, (100_003,), generator=generator, dtype=torch.uint8)[1:],
        "half": torch.randn(333, 77, generator=generator).to(torch.bfloat16).t(),
        "version": torch.tensor(version),
        "empty": torch.empty(0, 4),
    }
    if form == "safetensors":
        del state["tied"]
    return state


def claimed(obj: Any) -> int:
    """The version that an object of :func:`make` states, unverified."""
    return int(obj[0, 0] if isinstance(obj, torch.Tensor) else obj["version"])


def version_of(obj: Any) -> int:
    """The version of such an object, verified. Raises AssertionError if a bit differs from that version."""
    form = "npy" if isinstance(obj, torch.Tensor) else "pt" if "tied" in obj else "safetensors"
    version = claimed(obj)
    difference = differ(obj, make(version, (obj if form == "npy" else obj["large"]).nbytes, form), form)
    if difference:
        raise AssertionError(f"the object is not version {version}: {difference}")
    return version


def differ(got: Any, expected: Any, form: str = "pt") -> str:
    """The first difference between two such objects, or an empty string. Only ``pt`` keeps order and strides."""
    if form == "npy":
        return _differ("array", got, expected, strides=False)
    if list(got) != list(expected) and (form == "pt" or got.keys() != expected.keys()):
        return f"keys {list(got)}"
    differences = (_differ(name, got[name], tensor, form == "pt") for name, tensor in expected.items())
    return next(filter(None, differences), "")


def _differ(name: str, other: torch.Tensor, tensor: torch.Tensor, strides: bool) -> str:
    if (other.dtype, other.shape) != (tensor.dtype, tensor.shape) or (strides and other.stride() != tensor.stride()):
        return f"{name}: {other.dtype} {tuple(other.shape)} {other.stride()}"
    return "" if torch.equal(_bytes(other), _bytes(tensor)) else f"{name}: other bytes"


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def read(path: str | os.PathLike[str]) -> Any:
    """Read a file with the format's own library."""
    if format_of(path) == "safetensors":
        return safetensors.torch.load_file(path)
    if format_of(path) == "npy":
        return torch.from_numpy(numpy.load(path))
    return torch.load(path, weights_only=True)


def write(obj: Any, path: str | os.PathLike[str]) -> None:
    """Write a file with the format's own library."""
    if format_of(path) == "safetensors":
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in obj.items()}, path)
    elif format_of(path) == "npy":
        numpy.save(path, obj.numpy())
    else:
        torch.save(obj, path)
