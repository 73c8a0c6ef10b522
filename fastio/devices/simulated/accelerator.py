"""The simulated accelerator, as fastio uses accelerators (:class:`fastio.devices.Accelerator`)."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from itertools import chain
from types import SimpleNamespace
from typing import Any

import torch

from fastio.devices import kinds
from fastio.devices.accelerator import Accelerator, Copy, Stream
from fastio.devices.simulated import controls, memory
from fastio.errors import RefusedError


class SimulatedAccelerator(Accelerator):
    """``simulated:0`` and ``simulated:1``."""

    has_kvikio = True

    def __init__(self) -> None:
        super().__init__("simulated")
        self._copy = memory.c_library().simulated_copies
        self._workspace: torch.Tensor | None = None  # of the convolution that is issued

    def why_unavailable(self) -> tuple[str, str]:
        return "it was not loaded", "fastio.devices.simulated.use()"

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        return memory.bytes_at(address, nbytes)

    def native_copies(self) -> int:
        return memory.native_copies()

    def open_window(self, address: int, nbytes: int) -> Any:
        try:
            window = memory.open_peer_window(address, nbytes)
        except RuntimeError as error:
            raise RefusedError(f"no window: {error}") from error
        return SimpleNamespace(address=window, close=lambda: memory.close_peer_window(window))

    def begin_convolution(self, device: torch.device, nbytes: int, fastest: bool) -> None:
        if fastest and controls.workspaces():
            self._workspace = torch.empty(int(nbytes * controls.workspaces()), dtype=torch.uint8, device=device)

    def end_convolution(self) -> None:
        self._workspace = None

    def current_stream(self, device: torch.device) -> Stream:
        index: int | None = device.index
        return torch._C._accelerator_getStream(self.module.current_device() if index is None else index)

    def copy(self, stream: Stream, copies: Sequence[Copy], to_host: bool) -> None:
        words = array("Q", chain.from_iterable(copies))
        address, _ = words.buffer_info()
        failed = self._copy(stream.device_index, stream.stream_id, address, len(copies), to_host)
        if failed is not None:
            raise RefusedError(f"a copy failed: {failed.decode()}")

    def crc32_of_ranges(self, ranges: Sequence[tuple[int, int]], device: torch.device) -> list[int]:
        values = [0] * len(ranges)
        with self.on(device):
            computed = {
                index: memory.crc32(memory.bytes_at(address, nbytes))
                for index, (address, nbytes) in enumerate(ranges)
                if nbytes
            }
            if computed:
                for index, value in zip(computed, torch.stack(list(computed.values())).tolist(), strict=True):
                    values[index] = value
        return values

    def host_view(self, host: torch.Tensor, owner: object, device: torch.device) -> torch.Tensor:
        buffer: Any = (ctypes.c_ubyte * host.nbytes).from_address(host.data_ptr())
        buffer.owner = owner  # torch keeps the buffer that it makes a tensor of
        return memory.host_view(torch.frombuffer(buffer, dtype=torch.uint8), device.index or 0)

    def pin(self, address: int, nbytes: int) -> None:
        try:
            memory.register_host(address, nbytes)
        except RuntimeError as error:
            raise RefusedError(f"pinning {nbytes} bytes failed: {error}") from error

    def unpin(self, address: int) -> None:
        try:
            memory.unregister_host(address)
        except RuntimeError as error:
            raise RefusedError(f"unpinning failed: {error}") from error


def use() -> None:
    """Let torch and fastio use the simulated accelerator in this process: see :func:`fastio.devices.simulated.load`."""
    controls.load()
    kinds.register(SimulatedAccelerator())
