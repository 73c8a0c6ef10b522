"""The simulated accelerator, as fastio uses accelerators (:class:`fastio.devices.Accelerator`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

import simulated
from fastio import devices
from fastio.errors import RefusedError


class SimulatedAccelerator(devices.Accelerator):
    """``simulated:0`` and ``simulated:1``."""

    has_kvikio = True

    def __init__(self) -> None:
        super().__init__("simulated")
        self._copy = simulated.c_library().simulated_copy

    def why_unavailable(self) -> tuple[str, str]:
        return "it was not loaded", "simulated.load()"

    def bytes_at(self, address: int, nbytes: int) -> torch.Tensor:
        return simulated.bytes_at(address, nbytes)

    def native_copies(self) -> int:
        return simulated.native_copies()

    def current_stream(self, device: torch.device) -> devices.Stream:
        index = self.module.current_device() if device.index is None else device.index
        return torch._C._accelerator_getStream(index)

    def copy(self, stream: devices.Stream, destination: int, source: int, nbytes: int, to_host: bool) -> None:
        failed = self._copy(stream.device_index, stream.stream_id, destination, source, nbytes, to_host)
        if failed is not None:
            raise RefusedError(f"a copy failed: {failed.decode()}")

    def crc32_of_ranges(self, ranges: Sequence[tuple[int, int]], device: torch.device) -> list[int]:
        values = [0] * len(ranges)
        with self.on(device):
            computed = {
                index: simulated.crc32(simulated.bytes_at(address, nbytes))
                for index, (address, nbytes) in enumerate(ranges)
                if nbytes
            }
            if computed:
                for index, value in zip(computed, torch.stack(list(computed.values())).tolist(), strict=True):
                    values[index] = value
        return values

    def host_view(self, host: torch.Tensor, owner: object, device: torch.device) -> torch.Tensor:
        memory: Any = (ctypes.c_ubyte * host.nbytes).from_address(host.data_ptr())
        memory.owner = owner  # torch keeps the buffer that it makes a tensor of
        return simulated.host_view(torch.frombuffer(memory, dtype=torch.uint8), device.index or 0)

    def pin(self, address: int, nbytes: int) -> None:
        try:
            simulated.register_host(address, nbytes)
        except RuntimeError as error:
            raise RefusedError(f"pinning {nbytes} bytes failed: {error}") from error

    def unpin(self, address: int) -> None:
        try:
            simulated.unregister_host(address)
        except RuntimeError as error:
            raise RefusedError(f"unpinning failed: {error}") from error


def use() -> None:
    """Let fastio use the simulated accelerator in this process."""
    simulated.load()
    devices.register(SimulatedAccelerator())
