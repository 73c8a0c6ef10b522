"""An NVMe controller for volumes: a native store whose device is a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fastio._native import BlockStore
from fastio.volumes import namespace_device

ADDRESS = "0000:03:00.0"
WHERE = f"vfio:{ADDRESS}"
"""The volume's name."""


class Controller:
    """What a native store of one controller is, on a file. ``failure`` is what the next transfer fails with.

    ``by_host`` counts the bytes of objects that went to or from memory that is not mapped: the host's.
    """

    by_host = 0
    drivers: ClassVar[list[str]] = []

    def __init__(self, path: Path) -> None:
        fd = os.open(path, os.O_RDWR)
        self.blocks = os.fstat(fd).st_size // 4096
        self.native = BlockStore([(fd, self.blocks)], 0, "threads", 4096)
        self.close = self.native.close
        self.failure: Any = None
        self.mapped: dict[int, int] = {}

    def devices(self) -> list[tuple[str, int, int, str, str]]:
        return [("model", self.blocks, 512, "A drive", "S1")]

    def map(self, address: int, nbytes: int) -> None:
        self.native.map(address, nbytes)
        self.mapped[address] = nbytes

    def unmap(self, address: int) -> None:
        self.native.unmap(address)
        del self.mapped[address]

    def peek(self, *place: int) -> Any:
        self._count(*place)
        return self.failure or self.native.peek(*place)

    def poke(self, *place: int) -> Any:
        self._count(*place)
        return self.failure or self.native.poke(*place)

    def _count(self, device: int, block: int, address: int, nbytes: int) -> None:
        is_object = block >= 2 + 2 * (self.blocks // 64)  # behind the superblocks and the journal
        if is_object and not any(at <= address and address + nbytes <= at + size for at, size in self.mapped.items()):
            Controller.by_host += nbytes


def on_file(path: Path, monkeypatch: pytest.MonkeyPatch, nbytes: int = 32 << 20) -> Path:
    """Let volumes find a controller at ADDRESS, whose namespace is a new file. ``Controller.drivers`` opened it."""
    path.write_bytes(bytes(nbytes))
    Controller.drivers = []

    def opened(devices: Any, limit: int, driver: str, alignment: int) -> Controller:
        assert devices == [{"vfio": ADDRESS, "spdk": f"trtype=PCIe traddr={ADDRESS}"}[driver]]
        Controller.drivers.append(driver)
        return Controller(path)

    monkeypatch.setattr(namespace_device, "BlockStore", opened)
    monkeypatch.setattr(namespace_device, "_last_drivers", {})
    return path
