"""Objects that a save and load must reproduce exactly, and comparisons of them."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

PLAIN = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
]  # fmt: skip
NAMED = [
    "uint16", "uint32", "uint64", "complex32", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2",
]  # fmt: skip
DTYPES = PLAIN + [getattr(torch, name) for name in NAMED if hasattr(torch, name)]


def tensor_of(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """A tensor of random bytes that are valid values of ``dtype``."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, generator=generator).bool()
    count = int(torch.Size(shape).numel()) * dtype.itemsize
    data = torch.randint(0, 64, (max(count, 1),), generator=generator, dtype=torch.uint8)[:count]
    return data.clone().view(dtype).reshape(shape)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal in dtype, shape, strides and every bit, including NaNs."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.is_quantized:
        return torch.equal(one.int_repr(), other.int_repr()) and one.qscheme() == other.qscheme()
    if one.layout != torch.strided:
        return torch.equal(one.to_dense(), other.to_dense())
    if one.stride() != other.stride():
        return False
    first, second = (t.detach().resolve_conj().contiguous().flatten() for t in (one, other))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8)) if first.numel() else True


def same(one: Any, other: Any) -> bool:
    """Whether two objects are equal, tensors bit by bit."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and type(one) is type(other) and same_bits(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def assorted() -> dict[str, Any]:
    """A dict of all dtypes, views, tied tensors, odd shapes, parameters and plain values."""
    base = torch.arange(4000, dtype=torch.float32).reshape(40, 100)
    large = torch.randn(300, 1000, generator=torch.Generator().manual_seed(1))
    return {
        "dtypes": {str(dtype): tensor_of(dtype, 5, 7) for dtype in DTYPES},
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty 2d": torch.empty(3, 0, dtype=torch.int16),
        "large": large,
        "tied": large,
        "view": base[3:7, 10:20],
        "transposed": base.t(),
        "strided": base[::2, ::3],
        "expanded": torch.ones(1, 5).expand(4, 5),
        "conjugate": tensor_of(torch.complex64, 6).conj(),
        "parameter": torch.nn.Parameter(torch.randn(11, 3, generator=torch.Generator().manual_seed(2))),
        "buffer": OrderedDict(a=torch.arange(3), b=[torch.zeros(2), (torch.ones(1), "text", None, 1.5)]),
        "sparse": torch.eye(5).to_sparse(),
        "numbers": [1, 2**70, 1.25, True, None, "ü", b"bytes"],
    }
