"""Copies of tensors of ``float4_e2m1fn_x2``, a dtype that torch 2.8 and 2.9 have and cannot copy."""

from __future__ import annotations

import torch

_FLOAT4 = getattr(torch, "float4_e2m1fn_x2", None)


def copyable(target: torch.Tensor, source: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors as ``target.copy_(source)`` takes them in every torch: both as bytes if both are float4."""
    if target.dtype == source.dtype == _FLOAT4:
        return target.view(torch.uint8), source.view(torch.uint8)
    return target, source
