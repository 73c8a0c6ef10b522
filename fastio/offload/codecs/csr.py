"""Packs tensors as CSR-128, the format of ``native/codec/csr.hpp``, on the CPU or the GPU."""

from __future__ import annotations

import torch

from fastio._native import csr_count, csr_decode, csr_encode, csr_nbytes
from fastio.errors import FastIOError, ToolUnavailableError
from fastio.offload.codecs import csr_cuda
from fastio.offload.codecs.device_numbers import Steps
from fastio.offload.stores import fresh_memory
from fastio.runtime.native_errors import NativeError

COLUMNS = 128
MAX_ELEMENTS = 2**32 - 1  # limit of a row pointer

_PIECES = 16  # sampled before all of a large tensor is counted
_PIECE = 32 * COLUMNS


class DamagedError(FastIOError):
    """A payload is inconsistent, or does not match the number of elements. The message names the row."""


def words_of(dtype: torch.dtype) -> tuple[int, int]:
    """Return how many CSR-128 elements one element of ``dtype`` is, and their bytes; (0, 0) if it cannot be packed."""
    if dtype.itemsize == 16:
        return 2, 8
    return (1, dtype.itemsize) if dtype.itemsize in {2, 4, 8} else (0, 0)


def require(device: torch.device) -> None:
    """Raise ToolUnavailableError for a device without kernels, and for a GPU without CuPy."""
    if device.type == "cuda":
        csr_cuda.KERNELS.require()
    elif device.type != "cpu":
        raise ToolUnavailableError("csr", f"it has no kernels for {device.type} devices")


def pack(
    plain: torch.Tensor, least_ratio: float = 0.0, valid: torch.Tensor | None = None
) -> Steps[torch.Tensor | None]:
    """Return the payload of a contiguous tensor, as uint8 on its device; None if it is not worth packing.

    None if it cannot be packed (elements of one byte, more than 2**32 - 1 of them), or if the ratio would be below
    ``least_ratio``, or if ``valid``, a bool on its device, is False. A large tensor on the CPU is first judged by a
    sample of 16 pieces of 4096 elements. Raises ToolUnavailableError as :func:`require` does.
    """
    words, itemsize = words_of(plain.dtype)
    elements = plain.numel() * words
    if words == 0 or elements > MAX_ELEMENTS:
        return None
    require(plain.device)
    if plain.is_cuda:
        return (yield from csr_cuda.pack(plain, elements, itemsize, least_ratio, valid))
    if valid is not None and not (yield valid):
        return None
    address = plain.data_ptr()
    if least_ratio > 0 and not _sample_pays(address, elements, itemsize, least_ratio):
        return None
    nbytes = csr_nbytes(elements, itemsize, csr_count(address, elements, itemsize))
    if nbytes * least_ratio > plain.nbytes:
        return None
    payload = fresh_memory.empty((nbytes,), torch.uint8, plain.device)
    try:
        csr_encode(address, elements, itemsize, payload.data_ptr(), nbytes)
    except NativeError as error:  # another thread changed the tensor
        raise RuntimeError(error.args[1]) from None
    return payload


def unpack(
    payload: torch.Tensor, elements: int, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return ``elements`` elements of ``dtype`` on ``device``, one-dimensional. Raises DamagedError.

    By a GPU's kernels, the host does not wait for them: it raises that only for the size of a payload. With the
    elements comes a number on the GPU, which is not 0 if the payload is damaged.
    """
    words, itemsize = words_of(dtype)
    if words == 0 or elements * words > MAX_ELEMENTS:
        raise DamagedError(f"{elements} elements of {dtype} cannot have been packed")
    if device.type == "cuda" and csr_cuda.KERNELS.is_available():
        room = payload.nbytes - csr_nbytes(elements * words, itemsize, 0)
        if not 0 <= room <= elements * dtype.itemsize or room % itemsize:
            raise DamagedError(f"{payload.nbytes} bytes are no size of {elements} packed elements of {dtype}")
        tensor = torch.empty(elements, dtype=dtype, device=device)
        return tensor, csr_cuda.unpack(aligned(payload.to(device), 8), tensor, elements * words, itemsize)
    payload = payload.cpu()
    tensor = fresh_memory.empty((elements,), dtype, payload.device)
    try:
        csr_decode(payload.data_ptr(), payload.nbytes, tensor.data_ptr(), elements * words, itemsize)
    except NativeError as error:
        raise DamagedError(error.args[1]) from None
    return tensor.to(device), None


def aligned(payload: torch.Tensor, itemsize: int) -> torch.Tensor:
    """Return the payload, or a copy that is aligned for elements of that size."""
    unaligned = payload.data_ptr() % itemsize or payload.storage_offset() % itemsize
    return payload.clone() if unaligned else payload


def _sample_pays(address: int, elements: int, itemsize: int, least_ratio: float) -> bool:
    if elements < 4 * _PIECES * _PIECE:
        return True
    step = elements // _PIECES
    found = sum(csr_count(address + i * step * itemsize, _PIECE, itemsize) for i in range(_PIECES))
    sampled = _PIECES * _PIECE
    return csr_nbytes(sampled, itemsize, found) * least_ratio <= sampled * itemsize
