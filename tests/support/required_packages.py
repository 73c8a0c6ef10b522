"""Skips test files whose packages are not installed, without importing what takes seconds."""

from __future__ import annotations

import importlib.util

import pytest


def require(*names: str) -> None:
    """Skip the test file that calls this unless these packages are installed."""
    for name in names:
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed", allow_module_level=True)
