"""Objects that know which version they are, bit for bit."""

from __future__ import annotations

import functools

import torch

OLD, NEW = 1, 2


@functools.lru_cache(maxsize=8)
def make(version: int, nbytes: int = 3 << 20) -> dict[str, torch.Tensor]:
    """A state dict of about ``nbytes`` bytes: large, small, odd, tied, 0-dim and empty tensors, all of one version.

    Do not change it: the next one who asks gets the same.
    """
    generator = torch.Generator().manual_seed(version)
    large = torch.randint(-(1 << 31), 1 << 31, (nbytes // 4,), generator=generator, dtype=torch.int32)
    return {
        "large": large,
        "tied": large[5:77],
        "odd": torch.randint(0, 256, (100_003,), generator=generator, dtype=torch.uint8)[1:],
        "half": torch.randn(333, 77, generator=generator).to(torch.bfloat16).t(),
        "version": torch.tensor(version),
        "empty": torch.empty(0, 4),
    }


def differ(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> str:
    """What differs between two such objects; the empty string if nothing does."""
    if list(got) != list(expected):
        return f"keys {list(got)}"
    for name, tensor in expected.items():
        other = got[name]
        if (other.dtype, other.shape, other.stride()) != (tensor.dtype, tensor.shape, tensor.stride()):
            return f"{name}: {other.dtype} {tuple(other.shape)} {other.stride()}"
        if not torch.equal(_bytes(other), _bytes(tensor)):
            return f"{name}: other bytes"
    return ""


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)
