"""Windows into other devices' memory: what is refused here. With a device: tests/emulator."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fastio.errors import RefusedError
from fastio.nvme.bar_memory import BarWindow

PCI = Path("/sys/bus/pci/devices")


def test_a_device_that_is_not_there() -> None:
    with pytest.raises(RefusedError, match=r"ffff:1f\.7: there is no such PCI device: lspci -D"):
        BarWindow("ffff:1f.7", 0)


def test_a_bar_that_no_device_has() -> None:
    with pytest.raises(ValueError, match="BARs 0 to 5, got 6"):
        BarWindow("ffff:1f.7", 6)


def test_a_device_that_a_driver_has() -> None:
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
