"""Settings of torch that change how kernels round: noted when an operator runs, and set when it runs again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Numerics = tuple[Any, ...]
"""The values of the settings."""


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_default_dtype, torch.set_default_dtype
    for name in (
        *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32"),
        *("mkldnn_enabled", "mkldnn_deterministic", "deterministic_algorithms"),
        *("cublas_allow_tf32", "cublas_allow_fp16_accumulation"),
        *("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"),
    ):
        get, put = (getattr(torch._C, f"_{verb}_{name}", None) for verb in ("get", "set"))
        if get is not None and put is not None:  # torch 2.6 lacks some
            yield get, put


_SETTINGS = tuple(_settings())


def current() -> Numerics:
    """Return the settings as they are now."""
    return tuple([get() for get, _ in _SETTINGS])


@contextlib.contextmanager
def applied(noted: Numerics, device: str) -> Iterator[None]:
    """Run operators on this type of device with these settings, without autograd and autocast.

    The recorded operators are those that autocast chose.
    """
    found = current()
    cast = torch.is_autocast_enabled(device)
    try:
        if found != noted:
            _set(noted)
        with torch.no_grad(), torch.autocast(device, enabled=False) if cast else contextlib.nullcontext():
            yield
    finally:
        if found != noted:
            _set(found)


def _set(values: Numerics) -> None:
    for (get, put), value in zip(_SETTINGS, values, strict=True):
        if get() != value:
            put(*value) if isinstance(value, tuple) else put(value)
