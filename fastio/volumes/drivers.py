"""Which drivers can drive the controller of a volume that is named by its PCI address, as ``nvme:0000:03:00.0``.

The kernel's passthrough, if the kernel has the controller; else the drivers in user space that are here. Of these a
dictionary chooses one, and all find the same objects.
"""

from __future__ import annotations

import re
from pathlib import Path

from fastio._native import why_no_spdk
from fastio.errors import VolumeError

_ADDRESS = re.compile(r"\b[0-9a-fA-F]{4}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]\b")
_NAMESPACE = re.compile(r"nvme(\d+)(?:c\d+)?n(\d+)")  # c: of a controller that shares it with others
_ROOT = Path("/")


def is_address(place: str) -> bool:
    """Whether a text is a PCI address."""
    return _ADDRESS.fullmatch(place) is not None


def address_in(text: str) -> str:
    """The first PCI address in a text; empty without one."""
    found = _ADDRESS.search(text)
    return "" if found is None else found[0]


def drivers(address: str, root: Path = _ROOT) -> dict[str, str]:
    """The drivers, and what each calls the controller's first namespace. VolumeError if the kernel's has none.

    If there is no controller at the address, the drivers say so when they open it.
    """
    folder = root / "sys/bus/pci/devices" / address.lower() / "nvme"
    if not folder.is_dir():
        return {"vfio": address} if why_no_spdk() else {"vfio": address, "spdk": f"trtype=PCIe traddr={address}"}
    found = (_NAMESPACE.fullmatch(path.name) for path in sorted(folder.glob("nvme*/nvme*n*")))
    devices = [root / f"dev/ng{one[1]}n{one[2]}" for one in found if one]
    if not devices or not devices[0].exists():
        raise VolumeError(
            f"nvme:{address}: the kernel's driver has the controller, and shows no passthrough device of it, expected "
            "one such as /dev/ng0n1: fastio-bench doctor lists what is missing"
        )
    return {"nvme": str(devices[0])}
