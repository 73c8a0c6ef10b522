"""Tests the errors of windows into other devices' memory. With a device: tests/emulator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastio.errors import RefusedError
from fastio.nvme.bar_memory import BarWindow

PCI = Path("/sys/bus/pci/devices")


def test_missing_device_raises_refused_error() -> None:
    with pytest.raises(RefusedError, match=r"ffff:1f\.7: there is no such PCI device: lspci -D"):
        BarWindow("ffff:1f.7", 0)


def test_invalid_bar_raises_value_error() -> None:
    with pytest.raises(ValueError, match="bar is 6: expected 0 to 5"):
        BarWindow("ffff:1f.7", 6)


def test_device_with_a_kernel_driver_raises_refused_error() -> None:
    others = ("vfio-pci", "pcieport")
    held = [
        (device.name, driver)
        for device in (sorted(PCI.iterdir()) if PCI.is_dir() else [])
        if (device / "driver").is_symlink()
        and (driver := os.path.basename(os.readlink(device / "driver"))) not in others
    ]
    if not held:
        pytest.skip("no driver has a PCI device here")
    address, driver = held[0]
    with pytest.raises(RefusedError, match=f"the driver '{driver}' uses this device") as caught:
        BarWindow(address, 0)
    assert f"/sys/bus/pci/drivers/{driver}/unbind" in str(caught.value)
    assert os.path.basename(os.readlink(PCI / address / "driver")) == driver
