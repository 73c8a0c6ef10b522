"""CSR-128 on a CUDA device: ``csr.cu``, compiled at run time through CuPy, one warp per row of 128 elements."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
from typing import Any

import torch

from fastio import _native
from fastio.errors import ToolUnavailableError

_WARPS = 8  # in a block


def is_available() -> bool:
    """Return whether CuPy is installed and compiles the source for this device."""
    return not isinstance(_find(), ToolUnavailableError)


def pack(plain: torch.Tensor, elements: int, itemsize: int, least_ratio: float) -> torch.Tensor | None:
    """Return the payload of a contiguous CUDA tensor; None below ``least_ratio``.

    Runs on the current stream of the tensor's device and waits for it: the host must know the number of non-zeros to
    allocate memory. Raises ToolUnavailableError without CuPy.
    """
    _library()
    rows = (elements + 127) // 128
    bits = torch.empty(4 * rows, dtype=torch.int32, device=plain.device)
    ends = torch.empty(rows, dtype=torch.int64, device=plain.device)
    if rows:
        _launch(f"csr_find_{itemsize}", rows, plain.device, plain, elements, bits, ends)
        ends.cumsum_(0)
    nbytes = _native.csr_nbytes(elements, itemsize, int(ends[-1]) if rows else 0)
    if nbytes * least_ratio > plain.nbytes:
        return None
    payload = torch.empty(nbytes, dtype=torch.uint8, device=plain.device)
    if rows:
        _launch(f"csr_pack_{itemsize}", rows, plain.device, plain, elements, bits, ends, payload)
    return payload


def unpack(payload: torch.Tensor, tensor: torch.Tensor, elements: int, itemsize: int) -> bool:
    """Fill a contiguous CUDA tensor; False if the payload is damaged and the tensor holds garbage.

    ``payload`` is on the same device, aligned to 8 bytes. Waits for the current stream, to know the result.
    """
    rows = (elements + 127) // 128
    room = payload.nbytes - _native.csr_nbytes(elements, itemsize, 0)
    if room < 0 or room % itemsize or (rows == 0 and room):
        return False
    damaged = torch.zeros(1, dtype=torch.int32, device=tensor.device)
    if rows:
        _launch(f"csr_unpack_{itemsize}", rows, tensor.device, payload, room // itemsize, elements, tensor, damaged)
    return not int(damaged)


def _launch(name: str, rows: int, device: torch.device, *arguments: torch.Tensor | int) -> None:
    """Start a kernel on torch's current stream. All its parameters are pointers or 64-bit numbers."""
    cupy, module = _library()
    values = [a if isinstance(a, int) else a.data_ptr() for a in arguments]
    stream = _Stream(torch.cuda.current_stream(device).cuda_stream)
    with cupy.cuda.Device(device.index), stream.in_cupy(cupy):
        module.get_function(name)(((rows + _WARPS - 1) // _WARPS,), (32 * _WARPS,), tuple(values))


class _Stream:
    """A torch stream, in the protocol by which CuPy accepts foreign streams."""

    def __init__(self, address: int) -> None:
        self._address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._address

    def in_cupy(self, cupy: Any) -> Any:
        """Return the stream as CuPy takes it: ExternalStream until CuPy 14, which warns about it."""
        made = getattr(cupy.cuda.Stream, "from_external", None)
        return cupy.cuda.ExternalStream(self._address) if made is None else made(self)


def _library() -> tuple[Any, Any]:
    found = _find()
    if isinstance(found, ToolUnavailableError):
        raise found
    return found


@functools.cache
def _find() -> tuple[Any, Any] | ToolUnavailableError:
    """Return CuPy and the module (compiled and loaded per device), or the reason why there is none."""
    try:
        cupy: Any = importlib.import_module("cupy")
        source = importlib.resources.files("fastio.offload.codecs").joinpath("csr.cu").read_text(encoding="utf-8")
        module = cupy.RawModule(code=source, options=("--std=c++17",))
        module.compile()
    except Exception as error:  # importing CuPy loads CUDA libraries, which may fail in any way
        reason = f"CuPy cannot compile the kernels: {type(error).__name__}: {error}"
        return ToolUnavailableError(
            "csr", reason, "pip install 'fastio[codec]' for CUDA 12, or cupy-cuda13x for CUDA 13"
        )
    return cupy, module
