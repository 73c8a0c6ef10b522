"""Reads what this machine's kernel offers to NVMe drivers: the IOMMU, VFIO, io_uring, huge pages."""

from __future__ import annotations

import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

from fastio._native import why_no_spdk
from fastio.nvme import sysfs

_ROOT = Path("/")
_OF_IOMMU = ("intel_iommu", "amd_iommu", "iommu", "iommu.passthrough", "intremap", "vfio_iommu_type1")
_MODULES = ("vfio", "vfio_pci", "vfio_iommu_type1")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the kernel offers.

    ``kernel``: the first two numbers of its version. ``iommu_units``: the hardware's units; ``iommu_groups``: the
    number of groups; ``kernel_line``: IOMMU parameters of the kernel command line. ``memlock``: bytes, -1 for no limit.
    ``root``: whether this process runs as root. ``no_spdk``: why this build has no SPDK, "" if it has one.
    """

    kernel: tuple[int, int]
    processor: str
    iommu_units: tuple[str, ...]
    iommu_groups: int
    kernel_line: tuple[str, ...]
    vfio_modules: tuple[str, ...]
    unsafe_no_iommu: bool
    io_uring_disabled: bool
    huge_pages_free: int
    memlock: int
    root: bool
    no_spdk: str

    @property
    def iommu(self) -> str:
        """The IOMMU's state, in one line."""
        said = f"; kernel line: {' '.join(self.kernel_line)}" if self.kernel_line else ""
        if self.iommu_groups:
            return f"on, {self.iommu_groups} groups ({', '.join(self.iommu_units) or 'virtual'}){said}"
        return f"off: no IOMMU groups{said}"


def facts(root: Path = _ROOT) -> Facts:
    """Read the facts. Opens nothing for writing."""
    version = re.match(r"(\d+)\.(\d+)", sysfs.text(root / "proc/sys/kernel/osrelease"))
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", sysfs.text(root / "proc/cpuinfo"), re.MULTILINE)
    words = sysfs.text(root / "proc/cmdline").split()
    huge = sysfs.text(root / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
    memlock = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return Facts(
        (int(version[1]), int(version[2])) if version else (0, 0),
        vendor[1] if vendor else "",
        tuple(sysfs.names(root / "sys/class/iommu")),
        len(sysfs.names(root / "sys/kernel/iommu_groups")),
        tuple(word for word in words if word.split("=")[0].split(".allow")[0] in _OF_IOMMU),
        tuple(name for name in _MODULES if (root / "sys/module" / name).is_dir()),
        sysfs.text(root / "sys/module/vfio/parameters/enable_unsafe_noiommu_mode") in ("Y", "1"),
        sysfs.text(root / "proc/sys/kernel/io_uring_disabled") == "2",
        int(huge or 0),
        -1 if memlock == resource.RLIM_INFINITY else memlock,
        os.geteuid() == 0,
        why_no_spdk(),
    )
