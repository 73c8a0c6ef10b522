"""Warns of loads that succeed, and leave a module otherwise than its caller will expect."""

from __future__ import annotations

import warnings

import torch

from fastio.models.partial_load import listed

_TO_CALLER = 3  # levels of the stack: the caller of load_model or load_into


def warn_of_meta_buffers(model: torch.nn.Module) -> None:
    """Warn of buffers on the meta device that no file has, because they are not persistent."""
    left = [
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
        if (buffer := module._buffers.get(name)) is not None and buffer.is_meta
    ]
    if left:
        (said,) = listed("these buffers are not persistent, so no file has them, and stay on the meta device", left)
        warnings.warn(
            f"load_model: {said}; compute them after the load, or build the module on the CPU",
            RuntimeWarning,
            stacklevel=_TO_CALLER,
        )
