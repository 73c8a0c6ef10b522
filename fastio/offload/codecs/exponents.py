"""Packs bfloat16 tensors on the CPU by their exponents: the format of ``native/codec/exponents.hpp``."""

from __future__ import annotations

import torch

from fastio._native import exponents_decode, exponents_encode, exponents_nbytes
from fastio.offload.codecs.csr import DamagedError
from fastio.offload.stores import fresh_memory
from fastio.runtime.native_errors import NativeError


def pack(plain: torch.Tensor, least_ratio: float) -> torch.Tensor | None:
    """Return the payload of a contiguous tensor, as uint8; None if it is not worth packing.

    None if it is not bfloat16 on the CPU, or if the ratio would be below ``least_ratio``.
    """
    if plain.dtype != torch.bfloat16 or plain.device.type != "cpu":
        return None
    address, elements = plain.data_ptr(), plain.numel()
    nbytes = exponents_nbytes(address, elements)
    if nbytes * least_ratio > plain.nbytes:
        return None
    payload = fresh_memory.empty((nbytes,), torch.uint8, plain.device)
    try:
        exponents_encode(address, elements, payload.data_ptr(), nbytes)
    except NativeError as error:  # another thread changed the tensor
        raise RuntimeError(error.args[1]) from None
    return payload


def unpack(payload: torch.Tensor, elements: int, device: torch.device) -> torch.Tensor:
    """Return ``elements`` elements of bfloat16 on ``device``, one-dimensional. Raises DamagedError."""
    payload = payload.cpu()
    tensor = fresh_memory.empty((elements,), torch.bfloat16, payload.device)
    try:
        exponents_decode(payload.data_ptr(), payload.nbytes, tensor.data_ptr(), elements)
    except NativeError as error:
        raise DamagedError(error.args[1]) from None
    return tensor.to(device)
