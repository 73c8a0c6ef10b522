"""Tells whether packages other than torch registered location tags with ``torch.serialization``."""

from __future__ import annotations

import functools
from typing import Any

import torch

_serialization: Any = torch.serialization


def foreign_packages() -> bool:
    """Return whether a package other than torch registered functions that tag or restore storages' locations."""
    return _foreign_among(tuple(_serialization._package_registry))


@functools.lru_cache(maxsize=4)
def _foreign_among(packages: tuple[tuple[Any, ...], ...]) -> bool:
    functions = (function for _, *both in packages for function in both)
    return any(getattr(function, "func", function).__module__ != "torch.serialization" for function in functions)
