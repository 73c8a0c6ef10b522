"""Makes random tensors of every dtype, layout and kind of torch."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy
import torch

from differential.classes import OwnParameter, Tagged

DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)
COMMON = [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.uint8]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
_QUANTIZED = {torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4}
_NOISE_BYTES = 48 << 20


@cache
def _noise() -> torch.Tensor:
    """Random bytes, from which all tensors are copied; without zeros, because unfilled memory holds zeros."""
    noise = numpy.random.Generator(numpy.random.PCG64(1)).integers(1, 256, _NOISE_BYTES, dtype=numpy.uint8)
    return torch.from_numpy(noise)


def filled(rng: random.Random, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous tensor of random bytes that are valid values of ``dtype``."""
    nbytes = max(0, int(numpy.prod(shape, dtype=numpy.int64))) * dtype.itemsize
    begin = rng.randrange(_NOISE_BYTES - nbytes + 1)
    data = _noise()[begin : begin + nbytes].clone()
    return ((data & 1).view(torch.bool) if dtype == torch.bool else data.view(dtype)).reshape(shape)


def any_dtype(rng: random.Random) -> torch.dtype:
    return rng.choice(COMMON) if rng.random() < 0.6 else rng.choice([one for one in DTYPES if one not in _QUANTIZED])


def shape_of(rng: random.Random, medium: bool) -> tuple[int, ...]:
    """Mostly a shape of a few elements; ``medium``: sometimes 64 KiB to 1 MiB, which loaders treat differently."""
    if medium and rng.random() < 0.5:
        return (rng.randrange(8, 32), rng.randrange(1 << 12, 1 << 13))
    draw = rng.random()
    if draw < 0.08:
        return ()
    if draw < 0.16:
        return rng.choice([(0,), (3, 0), (0, 4, 2)])
    return tuple(rng.randrange(1, 7) for _ in range(rng.randrange(1, 4)))


def plain(rng: random.Random, medium: bool = False) -> torch.Tensor:
    """A strided tensor that owns its storage."""
    return filled(rng, shape_of(rng, medium), any_dtype(rng))


def has_views(tensor: torch.Tensor) -> bool:
    """Whether :func:`view_of` may be used; torch itself crashes when it saves some views of quantized tensors."""
    return tensor.layout == torch.strided and not (tensor.is_quantized or tensor.is_nested)


def view_of(rng: random.Random, base: torch.Tensor) -> torch.Tensor:
    """A random view of a tensor."""
    kinds: list[Callable[[], torch.Tensor]] = [
        base.detach,
        lambda: base.t() if base.dim() <= 2 else base.transpose(0, 1),
        lambda: base.unsqueeze(-1).expand(*base.shape, 3),
        lambda: base[: max(1, base.shape[0] // 2)] if base.dim() else base.view(1),
        lambda: base[..., ::2] if base.dim() else base,
        lambda: base.as_strided((2, 2), (1, 1)) if base.numel() >= 3 else base.expand(2, *base.shape),
        lambda: base.flatten()[1:] if base.is_contiguous() and base.numel() else base.unsqueeze(0),
        lambda: base.view(rng.choice([torch.uint8, torch.int16, torch.float32])),
        lambda: base.as_strided((base.untyped_storage().nbytes() // base.dtype.itemsize,), (1,), 0),
    ]
    return rng.choice(kinds)()


def odd_bits(rng: random.Random) -> torch.Tensor:
    """Conjugate and negative views."""
    base = filled(rng, shape_of(rng, False), rng.choice(COMPLEX))
    kinds: list[Any] = [base.conj, lambda: base.transpose(0, -1).conj() if base.dim() else base]
    made: torch.Tensor = rng.choice([*kinds, lambda: base.conj().imag, lambda: base.real])()
    return made


def quantized(rng: random.Random) -> torch.Tensor:
    values = torch.arange(12.0).reshape(4, 3) * (1 + rng.randrange(5))
    if rng.random() < 0.5:
        return torch.quantize_per_tensor(values, 0.5, rng.randrange(5), rng.choice([torch.qint8, torch.quint8]))
    scales, zeros = torch.rand(4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), torch.zeros(4)
    return torch.quantize_per_channel(values, scales, zeros.long(), 0, rng.choice([torch.qint8, torch.qint32]))


def sparse(rng: random.Random) -> torch.Tensor:
    dense = torch.zeros(4, 6, dtype=rng.choice([torch.float32, torch.int64, torch.complex64]))
    for _ in range(rng.randrange(8)):
        dense[rng.randrange(4), rng.randrange(6)] = rng.randrange(1, 100)
    draw = rng.randrange(7)
    if draw == 0:
        return dense.to_sparse()
    if draw == 1:  # not coalesced
        return torch.sparse_coo_tensor(
            torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0]), (2, 3)
        )  # not coalesced
    if draw == 2:
        return dense.to_sparse(1)
    layouts = [torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc]
    blocked = draw >= 5
    return dense.to_sparse(layout=layouts[draw - 3], blocksize=(2, 3) if blocked else None)


def meta(rng: random.Random) -> torch.Tensor:
    return torch.empty(shape_of(rng, False), dtype=rng.choice(COMMON), device="meta")


def nested(rng: random.Random) -> torch.Tensor:
    parts = [filled(rng, (rng.randrange(1, 4), 3), torch.float32) for _ in range(rng.randrange(1, 4))]
    return torch.nested.nested_tensor(parts, layout=rng.choice([torch.strided, torch.jagged]))


def subclass(rng: random.Random) -> torch.Tensor:
    base = filled(rng, (rng.randrange(1, 5),), torch.float32)
    draw = rng.randrange(4)
    if draw == 0:
        made: torch.Tensor = base.as_subclass(Tagged)
    elif draw == 1:
        made = OwnParameter(base)
    else:
        from torch.testing._internal.two_tensor import TwoTensor

        made = TwoTensor(base, filled(rng, tuple(base.shape), torch.float32))
    if rng.random() < 0.5:
        made.note = rng.randrange(9)  # type: ignore[attr-defined]
    return made


def parameter(rng: random.Random, medium: bool = False) -> torch.Tensor:
    base = filled(rng, shape_of(rng, medium), rng.choice(FLOATS))
    draw = rng.randrange(5)
    if draw == 0 and hasattr(torch.nn, "Buffer"):
        made: Any = torch.nn.Buffer(base)
    elif draw == 1:
        made = base.requires_grad_()
    elif draw == 2:
        made = torch.nn.Parameter(base) * 2  # not a leaf
    else:
        made = torch.nn.Parameter(base, requires_grad=rng.random() < 0.7)
    if draw != 2 and rng.random() < 0.3:
        made.scale = filled(rng, (rng.randrange(1, 400),), torch.float32) if rng.random() < 0.5 else 2.5
    return made  # type: ignore[no-any-return]
