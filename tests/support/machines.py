"""A fake machine with NVMe controllers: the trees of /sys, /proc and /dev that Linux 6 would show.

They follow drivers/nvme/host/sysfs.c and Documentation/ABI of Linux, and a recording of Linux 6.1 in an emulated
machine. Device nodes are plain files, so tests really read a namespace's content.
"""

from __future__ import annotations

import os
from pathlib import Path


def recorded(root: Path, listing: Path) -> None:
    """Create below ``root`` the entries of a listing: (D)irectories, (L)inks, (F)iles with text, device (N)odes."""
    for line in listing.read_text().splitlines():
        kind, path, *rest = line.split(" ", 2)
        here = root / path.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        if kind == "D":
            here.mkdir(parents=True, exist_ok=True)
        elif kind == "L":
            here.symlink_to(rest[0])
        else:
            here.write_text(rest[0].replace("\\n", "\n").replace("\\t", "\t") if kind == "F" else "")


class Machine:
    """A fake machine below ``root``; each method adds to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (
            "dev",
            "proc/self",
            "proc/sys/kernel",
            "sys/bus/pci/devices",
            "sys/class/block",
            "sys/class/nvme",
        ):
            (root / folder).mkdir(parents=True)
        self.write("proc/self/mountinfo", "28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
        self.write("proc/swaps", "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n")
        self.write("proc/sys/kernel/osrelease", "6.8.0-45-generic\n")
        self.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: GenuineIntel\n")
        self.write("proc/cmdline", "BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro quiet\n")

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def link(self, path: str, target: str) -> None:
        """Create a relative link, like those of /sys."""
        link = self.root / path
        link.parent.mkdir(parents=True, exist_ok=True)
        (self.root / target).mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(self.root / target, link.parent))

    def pci(self, address: str, kind: str = "0x010802", driver: str = "nvme", group: int | None = None) -> str:
        """Add a device on the PCI bus; returns its folder."""
        folder = f"sys/devices/pci0000:00/{address}"
        self.write(f"{folder}/class", f"{kind}\n")
        self.write(f"{folder}/vendor", "0x144d\n")
        self.write(f"{folder}/device", "0xa808\n")
        self.link(f"sys/bus/pci/devices/{address}", folder)
        if driver:
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        if group is not None:
            self.link(f"{folder}/iommu_group", f"sys/kernel/iommu_groups/{group}")
            self.link(f"sys/kernel/iommu_groups/{group}/devices/{address}", folder)
        return folder

    def controller(self, address: str, number: int, serial: str, group: int | None = None) -> None:
        """Add a controller that is bound to the kernel's nvme driver."""
        folder = f"{self.pci(address, group=group)}/nvme/nvme{number}"
        self._identity(folder, serial, "pcie", address)
        self.link(f"sys/class/nvme/nvme{number}", folder)

    def fabrics(self, number: int, serial: str, address: str) -> None:
        """Add a controller over NVMe/TCP."""
        folder = f"sys/devices/virtual/nvme-fabrics/ctl/nvme{number}"
        self._identity(folder, serial, "tcp", address)
        self.link(f"sys/class/nvme/nvme{number}", folder)

    def namespace(self, address: str, nsid: int, nbytes: int, lba: int = 512, shared: bool = False) -> None:
        """Add a namespace to a controller. A ``shared`` one is the subsystem's; the controller has a hidden path."""
        controller = next((self.root / f"sys/devices/pci0000:00/{address}/nvme").iterdir())
        number = int(controller.name[4:])
        name = f"nvme{number}n{nsid}"
        folder = controller / name
        if shared:
            (controller / f"nvme{number}c{number}n{nsid}").mkdir()
            folder = self.root / f"sys/devices/virtual/nvme-subsystem/nvme-subsys{number}/{name}"
        inside = str(folder.relative_to(self.root))
        self.write(f"{inside}/dev", f"259:{number * 16 + nsid}\n")
        self.write(f"{inside}/size", f"{nbytes // 512}\n")
        self.write(f"{inside}/nsid", f"{nsid}\n")
        self.write(f"{inside}/queue/logical_block_size", f"{lba}\n")
        (folder / "holders").mkdir()
        self.link(f"{inside}/device", str(controller.relative_to(self.root)))
        self.link(f"sys/class/block/{name}", inside)
        with (self.root / "dev" / name).open("wb") as device:
            device.truncate(nbytes)
        (self.root / "dev" / f"ng{number}n{nsid}").touch()

    def partition(self, name: str, number: int) -> None:
        """Add a partition to a namespace."""
        whole = (self.root / "sys/class/block" / name).resolve().relative_to(self.root.resolve())
        part = f"{whole}/{name}p{number}"
        self.write(f"{part}/partition", f"{number}\n")
        self.write(f"{part}/dev", f"259:{100 + number}\n")
        (self.root / part / "holders").mkdir()
        self.link(f"sys/class/block/{name}p{number}", part)

    def mount(self, name: str, point: str, number: str | None = None) -> None:
        """Mount a block device; ``number`` is the device number in mountinfo, which is another one for btrfs."""
        device = number or (self.root / "sys/class/block" / name / "dev").read_text().strip()
        with (self.root / "proc/self/mountinfo").open("a") as file:
            file.write(f"97 28 {device} / {point} rw,relatime shared:9 master:2 - xfs /dev/{name} rw\n")

    def hold(self, name: str, holder: str, dm: str = "") -> None:
        """Make a virtual block device ``holder`` hold the block device."""
        target = f"sys/devices/virtual/block/{holder}"
        if dm:
            self.write(f"{target}/dm/name", f"{dm}\n")
        inside = (self.root / "sys/class/block" / name).resolve().relative_to(self.root.resolve())
        self.link(f"{inside}/holders/{holder}", target)

    def swap(self, name: str) -> None:
        """Use a block device as swap."""
        with (self.root / "proc/swaps").open("a") as file:
            file.write(f"/dev/{name}                          partition\t8388604\t0\t-2\n")

    def contents(self, name: str, offset: int, data: bytes) -> None:
        """Write bytes to a block device."""
        with (self.root / "dev" / name).open("r+b") as device:
            device.seek(offset)
            device.write(data)

    def _identity(self, folder: str, serial: str, transport: str, address: str) -> None:
        for field, text in {
            "model": "Samsung SSD 970 EVO Plus 1TB            ",
            "serial": f"{serial:20}",
            "firmware_rev": "2B2QEXM7",
            "transport": transport,
            "address": address,
        }.items():
            self.write(f"{folder}/{field}", f"{text}\n")
