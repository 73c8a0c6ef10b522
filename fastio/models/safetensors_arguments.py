"""Checks the arguments that functions with safetensors' names take for its sake."""

from __future__ import annotations

TORCH = ("pt", "torch", "pytorch")
NUMPY = ("np", "numpy")
_BACKENDS = ("mmap", "pread")


def check_framework(framework: object) -> bool:
    """Whether it is torch; False if it is numpy. ValueError for another one."""
    if framework not in (*TORCH, *NUMPY):
        raise ValueError(f"framework={framework!r}: expected 'pt' or 'np'; safetensors.safe_open has the others")
    return framework in TORCH


def check_backend(backend: object) -> None:
    """ValueError for a way to read that safetensors does not have."""
    if backend not in _BACKENDS:
        raise ValueError(f"backend={backend!r}: expected 'mmap' or 'pread'")
