"""Maps GPU memory to an address through which a disk reads and writes it (FlashNeuron, section 3.4).

    with GpuWindow(tensor.data_ptr(), tensor.nbytes) as window:
        store.map(window.address, window.nbytes)
        store.write(0, window.address, tensor.nbytes)  # from the GPU to the disk, bypassing host memory

There are two ways. Both map the GPU's BAR into this process, and VFIO maps that for the disk. Either the CUDA driver
exports the memory as a dma-buf and its descriptor is mapped (CUDA 11.7 exports; mapping came later), or GDRCopy pins
and maps it through its kernel module. The logic is tested with stand-ins for the two libraries on host memory; it has
not run with a GPU yet.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
from dataclasses import dataclass
from typing import Any

from fastio._native import dma_buf_refusal, fault_signal
from fastio.errors import RefusedError

_GPU_PAGE = 64 << 10  # unit of GDRCopy's pinning
_PROBE = 2 << 20
_DMA_BUF = 1  # CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
_THROUGH_PCIE = 1  # CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE, of CUDA 12.8
_INVALID_VALUE, _NOT_SUPPORTED = 1, 801
_CUDA_ERRORS = {_INVALID_VALUE: "invalid value", 201: "no CUDA context", _NOT_SUPPORTED: "not supported"}


@dataclass(frozen=True, slots=True)
class Libraries:
    """The names of the two libraries for the dynamic linker."""

    cuda: str = "libcuda.so.1"
    gdrcopy: str = "libgdrapi.so.2"


_LIBRARIES = Libraries()


@dataclass(frozen=True, slots=True)
class Offer:
    """``way`` is "dma-buf", "GDRCopy" or "" for none; ``reasons`` says why earlier ways failed."""

    way: str
    reasons: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        why = "; ".join(self.reasons)
        if not self.way:
            return f"cannot be reached by a disk: {why}"
        return f"reached by a disk through {self.way}" + (f" ({why})" if why else "")


class GpuWindow:
    """Maps ``nbytes`` of GPU memory at ``gpu_address`` (a tensor's ``data_ptr()``) to :attr:`address`.

    :attr:`offer` says which way was used. The memory must stay, and the GPU's work on it must be done (for example by
    ``torch.cuda.synchronize()``) before the disk reads or writes it; afterwards the GPU sees what the disk wrote. A
    context manager; ``close`` it after the store has unmapped it. Raises RefusedError with both reasons if neither way
    works.
    """

    def __init__(self, gpu_address: int, nbytes: int, libraries: Libraries = _LIBRARIES) -> None:
        if nbytes < 1:
            raise ValueError(f"nbytes is {nbytes}: expected 1 or more")
        reasons: list[str] = []
        self._opened: _DmaBuf | _Gdr | None = None
        for way in (_DmaBuf, _Gdr):
            try:
                self._opened = way(gpu_address, nbytes, libraries)
            except _ImpossibleError as error:
                reasons.append(f"{way.name}: {error}")
                continue
            self.address = self._opened.address
            self.nbytes = nbytes
            self.offer = Offer(way.name, tuple(reasons))
            return
        raise RefusedError(f"no disk can reach this GPU memory: {'; '.join(reasons)}")

    def close(self) -> None:
        """Unmap it. May be called twice."""
        opened, self._opened = self._opened, None
        if opened is not None:
            opened.close()

    def __enter__(self) -> GpuWindow:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def offer() -> Offer:
    """Return which way works here, by mapping 2 MiB of the current device's memory."""
    import torch

    from fastio import devices

    if not devices.of("cuda").is_available():
        return Offer("", ("torch sees no CUDA device",))
    memory = torch.empty(2 * _PROBE, dtype=torch.uint8, device="cuda")
    try:
        with GpuWindow(memory.data_ptr() + -memory.data_ptr() % _PROBE, _PROBE) as window:
            return window.offer
    except RefusedError as error:
        return Offer("", (str(error).partition(": ")[2],))


class _ImpossibleError(Exception):
    """Why one of the ways does not work."""


class _DmaBuf:
    """Maps whole pages around the memory through a dma-buf of the CUDA driver."""

    name = "dma-buf"

    def __init__(self, gpu_address: int, nbytes: int, libraries: Libraries) -> None:
        cuda = _loaded(libraries.cuda)
        try:
            export = cuda.cuMemGetHandleForAddressRange
        except AttributeError:
            raise _ImpossibleError("this CUDA driver exports none (11.7 is the first that does)") from None
        export.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_ulonglong)
        first, size = _around(gpu_address, nbytes, mmap.PAGESIZE)
        fd = ctypes.c_int(-1)
        # If another link connects CPU and GPU, a disk still needs the mapping over PCIe. Elsewhere, and in older
        # drivers, the flag does not exist.
        result = export(ctypes.byref(fd), first, size, _DMA_BUF, _THROUGH_PCIE)
        if result in (_INVALID_VALUE, _NOT_SUPPORTED):
            result = export(ctypes.byref(fd), first, size, _DMA_BUF, 0)
        if result != 0:
            raise _ImpossibleError(f"the CUDA driver says {_CUDA_ERRORS.get(result, f'error {result}')}")
        try:
            self._mapping = mmap.mmap(fd.value, size, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        except (OSError, ValueError) as error:
            why = f"the driver exports it, but does not let it be mapped: {error}; {dma_buf_refusal()}"
            raise _ImpossibleError(why) from None
        else:
            self._refuse_faults(fd.value, size)
        finally:
            os.close(fd.value)
        held = ctypes.c_char.from_buffer(self._mapping)
        self.address = ctypes.addressof(held) + gpu_address - first

    def _refuse_faults(self, fd: int, size: int) -> None:
        """Raise if an access to the mapping would kill this process: drivers may map what cannot be read."""
        fault = fault_signal(fd, size)
        if fault != 0:
            self._mapping.close()
            why = f"reading it kills a process ({signal.strsignal(fault)})" if fault > 0 else "a child cannot map it"
            raise _ImpossibleError(f"the driver exports it and lets it be mapped, but {why}")

    def close(self) -> None:
        self._mapping.close()


class _Gdr:
    """Pins and maps whole GPU pages around the memory through GDRCopy's kernel module."""

    name = "GDRCopy"

    def __init__(self, gpu_address: int, nbytes: int, libraries: Libraries) -> None:
        self._api = api = _declared(_loaded(libraries.gdrcopy))
        self._session = api.gdr_open()
        if not self._session:
            raise _ImpossibleError("its kernel module does not answer; sudo modprobe gdrdrv")
        self._first, self._size = _around(gpu_address, nbytes, _GPU_PAGE)
        self._pinned = ctypes.c_ulong()
        failed = api.gdr_pin_buffer(self._session, self._first, self._size, 0, 0, ctypes.byref(self._pinned))
        if failed:
            api.gdr_close(self._session)
            raise _ImpossibleError(f"it cannot pin the memory ({os.strerror(abs(failed))})")
        self._mapped = ctypes.c_void_p()
        failed = api.gdr_map(self._session, self._pinned, ctypes.byref(self._mapped), self._size)
        if failed:
            api.gdr_unpin_buffer(self._session, self._pinned)
            api.gdr_close(self._session)
            raise _ImpossibleError(f"it cannot map the memory ({os.strerror(abs(failed))})")
        self.address = (self._mapped.value or 0) + gpu_address - self._first

    def close(self) -> None:
        failed = [
            self._api.gdr_unmap(self._session, self._pinned, self._mapped, self._size),
            self._api.gdr_unpin_buffer(self._session, self._pinned),
            self._api.gdr_close(self._session),
        ]
        if any(failed):
            raise RefusedError(f"GDRCopy did not release {self._size} bytes of GPU memory: {failed}")


def _around(address: int, nbytes: int, page: int) -> tuple[int, int]:
    """Return the address and size of the whole pages that contain this memory."""
    first = address // page * page
    return first, (address + nbytes - first + page - 1) // page * page


def _loaded(library: str) -> Any:
    try:
        return ctypes.CDLL(library)
    except OSError as error:
        raise _ImpossibleError(str(error)) from None


def _declared(api: Any) -> Any:
    """Declare the functions of gdrapi.h (version 2) used here. A pinned buffer's handle is a struct of one long."""
    handle, session, address = ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p
    try:
        api.gdr_open.restype = session
        api.gdr_close.argtypes = (session,)
        api.gdr_pin_buffer.argtypes = (
            session,
            ctypes.c_ulong,
            ctypes.c_size_t,
            ctypes.c_uint64,
            ctypes.c_uint32,
            ctypes.POINTER(handle),
        )
        api.gdr_map.argtypes = (session, handle, ctypes.POINTER(address), ctypes.c_size_t)
        api.gdr_unmap.argtypes = (session, handle, address, ctypes.c_size_t)
        api.gdr_unpin_buffer.argtypes = (session, handle)
    except AttributeError as error:
        raise _ImpossibleError(f"this is not libgdrapi version 2: {error}") from None
    return api
