"""CUDA devices, and those of ROCm, for which torch uses the same names. ROCm is unproven."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fastio._native import cuda_copies, cuda_copy
from fastio.devices.accelerator import Accelerator, Copy, Stream
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.runtime.native_errors import NativeError

_torch: Any = torch._C
_PORTABLE = 1  # cudaHostRegisterPortable: pinned for every device, not only for the current one


class CudaBytes:
    """``nbytes`` of CUDA memory at ``address``, for readers of ``__cuda_array_interface__`` (torch, kvikio, cupy)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


class Cuda(Accelerator):
    """All CUDA devices."""

    has_kvikio = True

    def __init__(self) -> None:
        super().__init__("cuda")
        self._streams: dict[tuple[int, int], Stream] = {}
        self._cudnn: tuple[bool, bool] | None = None  # torch's settings, while a convolution has others

    def why_unavailable(self) -> tuple[str, str]:
        """See :class:`Accelerator`."""
        if not torch.backends.cuda.is_built():
            return f"this torch ({torch.__version__}) is built without CUDA", "install a torch that is built with CUDA"
        return "torch finds no CUDA device", "it needs a GPU and its driver; nvidia-smi shows what the driver sees"

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        """See :class:`Accelerator`."""
        # The address determines the device. The caller's default device, which may be another, would cause a copy.
        with torch._C.DisableTorchFunction():
            return torch.as_tensor(CudaBytes(address, nbytes))

    def begin_convolution(self, device: torch.device, nbytes: int, fastest: bool) -> None:
        """See :class:`Accelerator`. Unproven: no GPU has run it.

        cuDNN tries all algorithms and takes the fastest, or, if results must be reproducible, one that torch knows;
        torch cannot limit workspaces at run time (cuDNN reads CUDNN_CONV_WSCAP_DBG when it starts).
        """
        cudnn = torch.backends.cudnn
        if self._cudnn is None:
            self._cudnn = cudnn.benchmark, cudnn.deterministic
        cudnn.benchmark, cudnn.deterministic = fastest, not fastest or self._cudnn[1]

    def end_convolution(self) -> None:
        """See :class:`Accelerator`."""
        before, self._cudnn = self._cudnn, None
        if before is not None:
            torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic = before

    def kvikio_memory(self, address: int, nbytes: int) -> Any:
        """See :class:`Accelerator`."""
        return CudaBytes(address, nbytes)

    def native_copies(self) -> int:
        """See :class:`Accelerator`: by the driver's own library. ROCm has none."""
        try:
            return cuda_copies()
        except NativeError as error:
            reason = f"native code cannot copy to the GPU: {error.args[1]}"
            raise ToolUnavailableError("pinned", reason, "it needs NVIDIA's driver, libcuda.so.1") from None

    def current_stream(self, device: torch.device) -> Stream:
        """See :class:`Accelerator`. torch makes a new object in each call; here, equal streams are one object."""
        index = device.index
        if index is None:
            return torch.cuda.current_stream(device)
        key = index, _torch._cuda_getCurrentRawStream(index)
        stream = self._streams.get(key)
        if stream is None:
            stream = self._streams[key] = torch.cuda.current_stream(device)
        return stream

    def copy(self, stream: Stream, copies: Sequence[Copy], to_host: bool) -> None:
        """See :class:`Accelerator`: by the driver's own library; ROCm has another."""
        if torch.version.hip is not None:
            super().copy(stream, copies, to_host)
            return
        try:
            cuda_copy(stream.cuda_stream, copies, to_host)
        except NativeError as error:
            raise RefusedError(f"a copy between a GPU and pinned memory failed: {error.args[1]}") from None

    def crc32_of_ranges(self, ranges: Sequence[tuple[int, int]], device: torch.device) -> list[int]:
        """See :class:`Accelerator`: by a kernel that CuPy compiles."""
        from fastio.devices import crc32_cuda  # without a GPU, `import fastio` needs none of it

        return crc32_cuda.crc32_of_ranges(ranges, device)

    def host_view(self, host: torch.Tensor, owner: object, device: torch.device) -> torch.Tensor:
        """See :class:`Accelerator`: pinned memory has the same address on the GPU (unified addressing)."""
        view: Any = CudaBytes(host.data_ptr(), host.nbytes)
        view.owner = owner
        with torch._C.DisableTorchFunction(), torch.cuda.device(device):
            return torch.as_tensor(view, device=device)

    def pin(self, address: int, nbytes: int) -> None:
        """See :class:`Accelerator`."""
        _check(torch.cuda.cudart().cudaHostRegister(address, nbytes, _PORTABLE), f"pinning {nbytes} bytes")

    def unpin(self, address: int) -> None:
        """See :class:`Accelerator`."""
        _check(torch.cuda.cudart().cudaHostUnregister(address), "unpinning")

    def identity(self, device: torch.device) -> str:
        """See :class:`Accelerator`. torch tells PCI addresses since 2.8."""
        found: Any = torch.cuda.get_device_properties(device)
        try:
            address = f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"
            node = int(Path("/sys/bus/pci/devices", address, "numa_node").read_text(encoding="utf-8"))
        except (AttributeError, OSError, ValueError):
            node = -1  # what Linux says of a machine with one node
        return f"{self.kind} {found.name}" + (f", node {node}" if node >= 0 else "")

    def memory_limit(self, device: torch.device) -> int | None:
        """See :class:`Accelerator`: at most the process's fraction of the memory."""
        limit = super().memory_limit(device)
        fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # since torch 2.8
        if limit is None or fraction is None:
            return limit
        return min(limit, int(fraction(device) * torch.cuda.get_device_properties(device).total_memory))

    def memory_allocated(self, device: torch.device) -> int:
        """See :class:`Accelerator`: without the flat copy that ``torch.cuda.memory_allocated`` makes of all numbers."""
        return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["current"])

    def out_of_memory_errors(self, device: torch.device) -> int:
        """See :class:`Accelerator`."""
        return int(torch.cuda.memory_stats_as_nested_dict(device)["num_ooms"])

    def has_context(self, index: int) -> bool:
        """See :class:`Accelerator`."""
        return bool(_torch._cuda_hasPrimaryContext(index))


def _check(result: Any, doing: str) -> None:
    if int(result) != 0:
        _clear_error()
        raise RefusedError(f"{doing} failed: CUDA error {int(result)}")


def _clear_error() -> None:
    """Clear CUDA's last error of this thread, which torch would raise after the next, unrelated kernel.

    torch has no cudaGetLastError: so launch a kernel here that takes the error.
    """
    if torch.cuda.is_initialized():
        with contextlib.suppress(RuntimeError):
            torch.empty(1, device="cuda").fill_(0)
