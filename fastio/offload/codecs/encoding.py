"""What an activation becomes before it leaves the device, and how it comes back.

=========== ======================================================================= ==========================
codec       payload                                                                 what comes back
=========== ======================================================================= ==========================
none        the bytes                                                               the same bits
csr         CSR-128 (:mod:`fastio.offload.codecs.csr`): the zeros left out                 the same bits
lossless    CSR-128 where that makes at most 4/5 of the bytes, the bytes elsewhere  the same bits
fp16        float32 rounded to float16                                              within the bounds below
bf16        float32 rounded to bfloat16                                             within the bounds below
csr+fp16    float32 rounded to float16, the zeros left out                          within the bounds below
=========== ======================================================================= ==========================

Rounding is to nearest, ties to even, so that for every element x of a float32 tensor the value y that comes back has

- fp16: ``|x - y| <= max(2**-11 * |x|, 2**-25)``, for a tensor whose elements are all finite and at most 65504;
- bf16: ``|x - y| <= max(2**-8 * |x|, 2**-134)``, for one whose elements are all finite and at most 255 * 2**120.

The sign of a zero is kept. A tensor outside these conditions, or of another dtype, is not rounded at all: "fp16" and
"bf16" then keep the bytes, and "csr+fp16" does what "lossless" does. ``Encoded.codec`` says what was done. Whether a
tensor may be rounded (statistics, say, should not be) is for the caller to know.

Source: FlashNeuron (FAST 2021), section 3.3: compressed-sparse-row and half-precision offload, the computation itself
keeping its full precision. Its "delayed precision reduction" is what fp16 does here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fastio.errors import PayloadError, ToolUnavailableError, UnsupportedError
from fastio.offload.codecs import csr
from fastio.offload.stores import fresh_memory

EXACT = ("none", "csr", "lossless")
CODECS = (*EXACT, "fp16", "bf16", "csr+fp16")

# What CSR-128 must save before "lossless" uses it: packing and unpacking take 0.24 s/GB on one core, a drive that
# writes and reads 2 GB/s takes 1 s/GB, so that at 4/5 of the bytes there is little left to win.
PAYING_RATIO = 1.25

_ROUNDED = {"fp16": torch.float16, "csr+fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Encoded:
    """A tensor as it travels.

    ``codec`` is what was really done, never "lossless"; ``ratio`` the tensor's bytes over the payload's. ``payload``
    is one-dimensional, uint8 and contiguous, on the tensor's device. To decode what was kept elsewhere meanwhile,
    put it in: ``dataclasses.replace(encoded, payload=...)``, on that device or on the CPU.
    """

    codec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    nbytes: int
    ratio: float
    payload: torch.Tensor


def is_exact(codec: str) -> bool:
    """Whether what comes back has the same bits. Raises ValueError for an unknown codec."""
    _check(codec)
    return codec in EXACT


def encode(tensor: torch.Tensor, codec: str) -> Encoded:
    """Encode a dense tensor of any shape and dtype; the module's table says how.

    With "none" (asked for, or come to) the payload of a contiguous tensor *is* its memory, not a copy.

    Raises ValueError for an unknown codec, UnsupportedError for a tensor that is not plain dense memory, and
    ToolUnavailableError for "csr" of a CUDA tensor without CuPy ("lossless" then keeps the bytes).
    """
    _check(codec)
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type not in {"cpu", "cuda"}:
        what = f"{tensor.layout}, {tensor.dtype}, on {tensor.device}"
        raise UnsupportedError(f"cannot encode a tensor that is {what}: only dense ones on the CPU or a GPU are")
    with torch.no_grad():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        rounded = _round(plain, _ROUNDED[codec]) if codec in _ROUNDED else None
        if rounded is not None:
            packed = csr.pack(rounded) if codec == "csr+fp16" else None
            used, payload = codec, _bytes(rounded) if packed is None else packed
        else:
            packed = _pack(plain, codec)
            used, payload = ("none", _bytes(plain)) if packed is None else ("csr", packed)
    ratio = plain.nbytes / payload.nbytes if payload.nbytes else 1.0
    return Encoded(used, tuple(tensor.shape), tensor.dtype, tensor.device, payload.nbytes, ratio, payload)


def decode(encoded: Encoded) -> torch.Tensor:
    """The tensor again: its shape, dtype and device, contiguous.

    With "none" the tensor *is* the payload's memory where that is aligned for it.

    Raises PayloadError where the payload is not what was encoded: a size that is not ``nbytes``, or a CSR-128
    directory that does not agree with itself. Whether the values are the ones that were written is for the store's
    checksums: a payload says nothing about them.
    """
    payload = encoded.payload
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise _damaged(encoded, f"it is {tuple(payload.shape)} {payload.dtype}, not contiguous bytes")
    if payload.nbytes != encoded.nbytes:
        raise _damaged(encoded, f"it has {payload.nbytes} bytes, expected {encoded.nbytes}")
    elements = math.prod(encoded.shape)
    stored = _ROUNDED.get(encoded.codec, encoded.dtype)
    with torch.no_grad():
        if encoded.codec.startswith("csr"):
            try:
                flat = csr.unpack(payload, elements, stored, encoded.device)
            except csr.DamagedError as error:
                raise _damaged(encoded, str(error)) from None
        else:
            if payload.nbytes != elements * stored.itemsize:
                raise _damaged(encoded, f"it has {payload.nbytes} bytes, expected {elements * stored.itemsize}")
            flat = csr.aligned(payload.to(encoded.device), stored.itemsize).view(stored)
        return _as(flat, encoded.dtype).view(encoded.shape)


def _check(codec: str) -> None:
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}: choose one of {', '.join(CODECS)}")


def _bytes(plain: torch.Tensor) -> torch.Tensor:
    return plain.view(-1).view(torch.uint8)


def _round(plain: torch.Tensor, dtype: torch.dtype) -> torch.Tensor | None:
    """The tensor in two bytes an element, or None where that would not keep to the bounds."""
    if plain.dtype != torch.float32 or plain.numel() == 0:
        return None
    low, high = torch.aminmax(plain)  # a NaN among the elements is both
    limit = torch.finfo(dtype).max
    return _as(plain, dtype) if bool((low >= -limit) & (high <= limit)) else None


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    return fresh_memory.empty(tuple(tensor.shape), dtype, tensor.device).copy_(tensor)


def _pack(plain: torch.Tensor, codec: str) -> torch.Tensor | None:
    if codec == "csr":
        return csr.pack(plain)
    if codec in {"lossless", "csr+fp16"}:
        try:
            return csr.pack(plain, PAYING_RATIO)
        except ToolUnavailableError:
            return None
    return None


def _damaged(encoded: Encoded, problem: str) -> PayloadError:
    return PayloadError(encoded.codec, encoded.shape, str(encoded.dtype), problem)
