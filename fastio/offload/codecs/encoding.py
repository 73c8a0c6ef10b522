"""Encodes activations before they leave the device, and decodes them.

=========== ======================================================================= ==========================
codec       payload                                                                 decoded
=========== ======================================================================= ==========================
none        the bytes                                                               the same bits
csr         CSR-128 (:mod:`fastio.offload.codecs.csr`): without the zeros           the same bits
lossless    CSR-128 if that is at most 4/5 of the bytes, else the bytes             the same bits
exponents   the same, but bfloat16 on the CPU with exponents of 4 bits if that is   the same bits
            (:mod:`fastio.offload.codecs.exponents`): for slower disks
fp16        float32 rounded to float16                                              within the bounds below
bf16        float32 rounded to bfloat16                                             within the bounds below
csr+fp16    float32 rounded to float16, without the zeros                           within the bounds below
=========== ======================================================================= ==========================

Rounding is to nearest, ties to even. For every element x of a float32 tensor, the decoded value y satisfies

- fp16: ``|x - y| <= max(2**-11 * |x|, 2**-25)``, for a tensor whose elements are all finite and at most 65504;
- bf16: ``|x - y| <= max(2**-8 * |x|, 2**-134)``, for one whose elements are all finite and at most 255 * 2**120.

The sign of a zero is kept. A tensor outside these conditions, or of another dtype, is not rounded: "fp16" and "bf16"
then keep the bytes, and "csr+fp16" does what "lossless" does. ``Encoded.codec`` says what was done. The caller decides
whether a tensor may be rounded (statistics, for example, should not be).

Source: FlashNeuron (FAST 2021), section 3.3: compressed-sparse-row and half-precision offload, while computation keeps
full precision. Its "delayed precision reduction" is fp16 here.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass, field
from typing import Literal

import torch

from fastio import devices
from fastio.errors import PayloadError, ToolUnavailableError, UnsupportedError, kind_of
from fastio.offload.codecs import csr, exponents
from fastio.offload.codecs.device_numbers import Steps, run
from fastio.offload.stores import fresh_memory

EXACT = ("none", "csr", "lossless", "exponents")
CODECS = (*EXACT, "fp16", "bf16", "csr+fp16")
Codec = Literal["none", "csr", "lossless", "exponents", "fp16", "bf16", "csr+fp16"]

# Least ratio at which "lossless" uses CSR-128: packing and unpacking take 0.24 s/GB on one core, writing and reading on
# a drive of 2 GB/s takes 1 s/GB, so at 4/5 of the bytes little is gained.
PAYING_RATIO = 1.25

_ROUNDED = {"fp16": torch.float16, "csr+fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Encoded:
    """An encoded tensor.

    ``codec`` is what was actually done, never "lossless"; ``ratio`` is the tensor's bytes over the payload's.
    ``payload`` is one-dimensional, uint8 and contiguous, on the tensor's device. To decode a payload that was kept
    elsewhere, use ``dataclasses.replace(encoded, payload=...)``, with a payload on that device or on the CPU.
    """

    codec: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    nbytes: int
    ratio: float
    payload: torch.Tensor = field(repr=False)


def is_exact(codec: Codec) -> bool:
    """Return whether decoding gives the same bits. Raises ValueError for an unknown codec."""
    _check(codec)
    return codec in EXACT


def require(codec: Codec, device: torch.device) -> None:
    """Raise ToolUnavailableError if the codec cannot encode tensors of a device at all.

    "lossless" and "exponents" can everywhere: without kernels they keep the bytes.
    """
    if codec.startswith("csr"):
        try:
            csr.require(device)
        except ToolUnavailableError as error:
            instead = "fp16" if codec == "csr+fp16" else "lossless"
            cure = f"{error.cure}, or use codec={instead!r}" if error.cure else f"use codec={instead!r}"
            raise ToolUnavailableError(codec, f"for tensors on {device}: {error.reason}", cure) from None


def encode(tensor: torch.Tensor, codec: Codec) -> Encoded:
    """Encode a dense tensor of any shape and dtype; see the module's table.

    With "none" (requested, or as the result) the payload of a contiguous tensor *is* its memory, not a copy.

    Raises ValueError for an unknown codec, UnsupportedError for a tensor that is not plain dense memory, and
    ToolUnavailableError as :func:`require` does.
    """
    return run(encode_in_steps(tensor, codec))


def encode_in_steps(tensor: torch.Tensor, codec: Codec) -> Steps[Encoded]:
    """As :func:`encode`, in steps: on a GPU the caller need not wait for the numbers that the host must know."""
    _check(codec)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"tensor is {kind_of(tensor)}: expected a torch.Tensor")
    if tensor.layout is not torch.strided or tensor.is_quantized or not devices.usable(tensor.device):
        what = f"{tensor.layout}, {tensor.dtype}, on {tensor.device}"
        raise UnsupportedError(f"cannot encode a tensor that is {what}: only dense ones on the CPU or a GPU are")
    require(codec, tensor.device)
    # Detached instead of in torch.no_grad: an interrupt in its Python code would leave the grad mode off.
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    used: str = codec
    rounded, valid = _round(plain, _ROUNDED[codec]) if codec in _ROUNDED else (None, None)
    packed = None
    if rounded is not None and codec == "csr+fp16":
        packed = yield from csr.pack(rounded, valid=valid)
    if rounded is not None and valid is not None and (packed is not None or (yield valid)):
        payload = _bytes(rounded) if packed is None else packed
    else:
        used, packed = yield from _pack(plain, codec)
        payload = _bytes(plain) if packed is None else packed
    ratio = plain.nbytes / payload.nbytes if payload.nbytes else 1.0
    return Encoded(used, tuple(tensor.shape), tensor.dtype, tensor.device, payload.nbytes, ratio, payload)


def decode(encoded: Encoded) -> torch.Tensor:
    """Return the tensor, contiguous, with its shape, dtype and device.

    With "none" the tensor *is* the payload's memory if that is aligned for it.

    Raises PayloadError if the payload is not what was encoded: a size other than ``nbytes``, or an inconsistent CSR-128
    directory. Payloads have no checksums of the values; those are the store's job.
    """
    tensor, damaged = begin_decode(encoded)
    if damaged is not None and int(damaged):
        raise _damaged(encoded, "its rows, pointers and values do not agree")
    return tensor


def begin_decode(encoded: Encoded) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As :func:`decode`, but the host waits for no GPU.

    With the tensor comes a number on the GPU, if its kernels tell only there whether the payload is consistent: it is
    not 0 if the payload is damaged, whose parts are ones (floats: NaN) then.
    """
    payload, damaged = encoded.payload, None
    if payload.dtype != torch.uint8 or payload.dim() != 1 or not payload.is_contiguous():
        raise _damaged(encoded, f"it is {tuple(payload.shape)} {payload.dtype}, not contiguous bytes")
    if payload.nbytes != encoded.nbytes:
        raise _damaged(encoded, f"it has {payload.nbytes} bytes, expected {encoded.nbytes}")
    elements = math.prod(encoded.shape)
    stored = _ROUNDED.get(encoded.codec, encoded.dtype)
    if encoded.codec.startswith(("csr", "exponents")):
        try:
            if encoded.codec == "exponents":
                flat = exponents.unpack(payload, elements, encoded.device)
            else:
                flat, damaged = csr.unpack(payload, elements, stored, encoded.device)
        except csr.DamagedError as error:
            raise _damaged(encoded, str(error)) from None
    else:
        if payload.nbytes != elements * stored.itemsize:
            raise _damaged(encoded, f"it has {payload.nbytes} bytes, expected {elements * stored.itemsize}")
        flat = csr.aligned(payload.to(encoded.device), stored.itemsize).view(stored)
    return _as(flat, encoded.dtype).view(encoded.shape), damaged


def _check(codec: str) -> None:
    if codec not in CODECS:
        raise ValueError(f"unknown codec {codec!r}: choose one of {', '.join(CODECS)}")


def _bytes(plain: torch.Tensor) -> torch.Tensor:
    return plain.view(-1).view(torch.uint8)


def _round(plain: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Return the tensor in two bytes per element, and whether that is within the bounds, without waiting for a GPU.

    (None, None) if the tensor is not rounded, whatever its values.
    """
    if plain.dtype != torch.float32 or plain.numel() == 0:
        return None, None
    low, high = torch.aminmax(plain)  # both are NaN if any element is
    limit = torch.finfo(dtype).max
    return _as(plain, dtype), (low >= -limit) & (high <= limit)


def _as(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    return fresh_memory.empty(tuple(tensor.shape), dtype, tensor.device).copy_(tensor)


def _pack(plain: torch.Tensor, codec: str) -> Steps[tuple[str, torch.Tensor | None]]:
    """Return the exact codec that was used, and its payload; None for the bytes."""
    packed = None
    if codec == "csr":
        packed = yield from csr.pack(plain)
    elif codec in {"lossless", "exponents", "csr+fp16"}:
        with contextlib.suppress(ToolUnavailableError):
            packed = yield from csr.pack(plain, PAYING_RATIO)
    if packed is not None:
        return "csr", packed
    if codec == "exponents":
        packed = exponents.pack(plain, PAYING_RATIO)
    return ("none" if packed is None else "exponents"), packed


def _damaged(encoded: Encoded, problem: str) -> PayloadError:
    return PayloadError(encoded.codec, encoded.shape, str(encoded.dtype), problem)
