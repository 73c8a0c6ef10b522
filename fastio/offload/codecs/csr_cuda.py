"""CSR-128 on a CUDA device: ``csr.cu``, compiled at run time through CuPy, one warp per row of 128 elements.

FlashNeuron, section 3.3.
"""

from __future__ import annotations

import torch

from fastio._native import csr_nbytes
from fastio.devices.cupy_kernels import Kernels
from fastio.offload.codecs.device_numbers import Steps

KERNELS = Kernels("csr", "fastio.offload.codecs", "csr.cu")


def pack(
    plain: torch.Tensor, elements: int, itemsize: int, least_ratio: float, valid: torch.Tensor | None = None
) -> Steps[torch.Tensor | None]:
    """Return the payload of a contiguous CUDA tensor; None below ``least_ratio``, and if ``valid`` (a bool) is False.

    Runs on the current stream of the tensor's device. The host must know the number of non-zeros to allocate memory:
    it is asked for once. Raises ToolUnavailableError without CuPy.
    """
    KERNELS.require()
    rows = (elements + 127) // 128
    bits = torch.empty(4 * rows, dtype=torch.int32, device=plain.device)
    ends = torch.empty(rows, dtype=torch.int64, device=plain.device)
    if rows:
        KERNELS.launch(f"csr_find_{itemsize}", rows, plain.device, plain, elements, bits, ends)
        ends.cumsum_(0)
    found = ends[-1:] if rows else torch.zeros(1, dtype=torch.int64, device=plain.device)
    nonzeros = yield found if valid is None else torch.where(valid, found, -1)
    if nonzeros < 0:
        return None
    nbytes = csr_nbytes(elements, itemsize, nonzeros)
    if nbytes * least_ratio > plain.nbytes:
        return None
    payload = torch.empty(nbytes, dtype=torch.uint8, device=plain.device)
    if rows:
        KERNELS.launch(f"csr_pack_{itemsize}", rows, plain.device, plain, elements, bits, ends, payload)
    return payload


def unpack(payload: torch.Tensor, tensor: torch.Tensor, elements: int, itemsize: int) -> torch.Tensor:
    """Fill a contiguous CUDA tensor; return a number on its device, which is not 0 if the payload is damaged.

    ``payload`` is on the same device, aligned to 8 bytes, and as large as one with some number of non-zeros. Damaged
    rows become ones (floats: NaN). Runs on the current stream of the device, for which the host does not wait.
    """
    rows = (elements + 127) // 128
    nonzeros = (payload.nbytes - csr_nbytes(elements, itemsize, 0)) // itemsize
    damaged = torch.zeros(1, dtype=torch.int32, device=tensor.device)
    if rows:
        KERNELS.launch(f"csr_unpack_{itemsize}", rows, tensor.device, payload, nonzeros, elements, tensor, damaged)
    return damaged
