"""Settings of torch that change how kernels round: noted when an operator runs, and set when it runs again."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

Numerics = tuple[Any, ...]
"""The values of the settings. None: torch does not tell (see :func:`_told`)."""

_SMALLEST = sys.float_info.min  # half of it is a denormal


def _settings() -> Iterator[tuple[Callable[[], Any], Callable[[Any], Any]]]:
    yield torch.get_num_threads, torch.set_num_threads
    yield torch.get_default_dtype, torch.set_default_dtype
    yield _flushes_denormals, torch.set_flush_denormal
    yield partial(_told, torch.get_float32_matmul_precision), torch.set_float32_matmul_precision
    for name in (
        *("cudnn_enabled", "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32"),
        *("mkldnn_enabled", "mkldnn_deterministic", "deterministic_algorithms"),
        *("cublas_allow_tf32", "cublas_allow_fp16_accumulation"),
        *("cublas_allow_fp16_reduced_precision_reduction", "cublas_allow_bf16_reduced_precision_reduction"),
    ):
        get, put = (getattr(torch._C, f"_{verb}_{name}", None) for verb in ("get", "set"))
        if get is not None and put is not None:  # torch 2.6 lacks some
            yield (partial(_told, get) if name.endswith("tf32") else get), put
    precision = getattr(torch._C, "_get_fp32_precision_getter", None)  # since torch 2.9
    if precision is not None:  # last: setting those above sets some of these
        for of in itertools.product(("mkldnn", "cuda"), ("matmul", "conv")):
            yield partial(precision, *of), partial(_set_precision, of)


def _flushes_denormals() -> bool:
    """Return whether this thread computes with denormals as zeros."""
    return _SMALLEST * 0.5 == 0.0


def _told(get: Callable[[], Any]) -> Any:
    """Return a setting; None where the program uses ``fp32_precision``, which this one does not agree with."""
    try:
        return get()
    except RuntimeError:
        return None


def _set_precision(of: tuple[str, str], value: str) -> None:
    torch._C._set_fp32_precision_setter(*of, "none")  # as the more general setting says
    if torch._C._get_fp32_precision_getter(*of) != value:
        torch._C._set_fp32_precision_setter(*of, value)


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
        now = get()
        if now != value and now is not None and value is not None:
            put(*value) if isinstance(value, tuple) else put(value)
