"""Lists the NVMe controllers that the kernel sees, under any driver, and their namespaces."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from fastio.nvme import blocks, signatures, sysfs

_ROOT = Path("/")
_NVME_CLASS = "0x010802"  # mass storage, non-volatile memory, NVM Express
_BRIDGE_CLASS = "0x0604"


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace as the kernel's nvme driver shows it. Sizes in bytes; ``lba_bytes`` is 0 if unknown.

    ``users`` use it now. ``holds`` is what is on it, "" if nothing known; ``unread`` is why it could not be read.
    ``generic`` is its passthrough device, "" if it has none. ``locked`` lists those of the two devices that this
    process may not read and write.
    """

    name: str
    nsid: int
    nbytes: int
    lba_bytes: int
    users: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    holds: str = ""
    unread: str = ""
    generic: str = ""
    locked: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mate:
    """Another device in a controller's IOMMU group: VFIO assigns a group as a whole. Bridges are left out."""

    address: str
    driver: str


@dataclass(frozen=True, slots=True)
class Controller:
    """``address`` is "0000:03:00.0" for a PCIe controller, else the kernel's ("traddr=...,trsvcid=...").

    ``driver`` is "nvme", "vfio-pci", ... or "" for none. Serial number, firmware and namespaces are known only under
    the kernel's driver; otherwise ``model`` is the vendor and device id. ``iommu_group`` is "" if there is none.
    ``group_locked``: this process may not open the group.
    """

    name: str
    address: str
    transport: str
    driver: str
    model: str = ""
    serial: str = ""
    firmware: str = ""
    iommu_group: str = ""
    group_mates: tuple[Mate, ...] = ()
    group_locked: bool = False
    namespaces: tuple[Namespace, ...] = ()


def controllers(root: Path = _ROOT) -> list[Controller]:
    """Return all controllers, PCIe first, by address. Reads the first and last blocks of unused namespaces."""
    pci = root / "sys/bus/pci/devices"
    found = [
        _on_pci(pci / address, root)
        for address in sysfs.names(pci)
        if sysfs.text(pci / address / "class") == _NVME_CLASS
    ]
    known = {controller.name for controller in found}
    for name in sysfs.names(root / "sys/class/nvme"):
        folder = root / "sys/class/nvme" / name
        transport = sysfs.text(folder / "transport")
        if name not in known and transport != "pcie":
            found.append(_of_kernel(folder, sysfs.text(folder / "address"), transport, root))
    return found


def _on_pci(folder: Path, root: Path) -> Controller:
    address, driver = folder.name, sysfs.target(folder / "driver")
    group = sysfs.target(folder / "iommu_group")
    kernel = next(iter(sysfs.names(folder / "nvme")), "")
    if kernel:
        known = _of_kernel(folder / "nvme" / kernel, address, "pcie", root)
        name, model = kernel, known.model
    else:
        known = Controller("", address, "pcie", driver)
        vendor, device = (sysfs.text(folder / field).removeprefix("0x") for field in ("vendor", "device"))
        name, model = address, f"{vendor}:{device}"
    node = root / "dev/vfio" / group
    return Controller(
        name,
        address,
        "pcie",
        driver,
        model,
        known.serial,
        known.firmware,
        group,
        _mates(folder, root) if group else (),
        bool(group) and node.exists() and not os.access(node, os.R_OK | os.W_OK),
        known.namespaces,
    )


def _of_kernel(folder: Path, address: str, transport: str, root: Path) -> Controller:
    model, serial, firmware = (sysfs.text(folder / field) for field in ("model", "serial", "firmware_rev"))
    namespaces = tuple(_namespace(name, root) for name in _block_names(folder))
    return Controller(folder.name, address, transport, "nvme", model, serial, firmware, namespaces=namespaces)


def _block_names(folder: Path) -> list[str]:
    """Return a controller's block devices. Shared ones appear under their subsystem's name."""
    matches = (re.fullmatch(r"nvme(\d+)(?:c\d+)?n(\d+)", name) for name in sysfs.names(folder))
    return sorted({f"nvme{match[1]}n{match[2]}" for match in matches if match})


def _namespace(name: str, root: Path) -> Namespace:
    folder, device = root / "sys/class/block" / name, root / "dev" / name
    generic = root / "dev" / name.replace("nvme", "ng", 1)
    has = blocks.holders(folder, root)
    holds = unread = ""
    if not has.users:
        try:
            holds = signatures.of_file(str(device))
        except OSError as error:
            unread = error.strerror or str(error)
    nsid = sysfs.text(folder / "nsid")
    return Namespace(
        name,
        int(nsid) if nsid else int(name.rpartition("n")[2]),
        int(sysfs.text(folder / "size") or 0) * 512,  # always in sectors of 512 bytes
        int(sysfs.text(folder / "queue/logical_block_size") or 0),
        has.users,
        has.partitions,
        holds,
        unread,
        str(generic) if generic.exists() else "",
        tuple(str(node) for node in (device, generic) if node.exists() and not os.access(node, os.R_OK | os.W_OK)),
    )


def _mates(folder: Path, root: Path) -> tuple[Mate, ...]:
    mates = []
    for address in sysfs.names(folder / "iommu_group/devices"):
        other = root / "sys/bus/pci/devices" / address
        if address != folder.name and not sysfs.text(other / "class").startswith(_BRIDGE_CLASS):
            mates.append(Mate(address, sysfs.target(other / "driver")))
    return tuple(mates)
