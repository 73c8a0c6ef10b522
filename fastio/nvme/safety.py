"""Refuses devices that are in use, and devices that hold data unless their serial number is given.

What the kernel uses (mounts, holders, swap) is refused even then, because the kernel would keep using it. Checked
before a block store opens a whole device. The store then holds the device exclusively, so that it cannot be mounted.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from pathlib import Path

from fastio.errors import DeviceInUseError
from fastio.nvme import blocks, signatures, sysfs

_ROOT = Path("/")
# The kernel releases the files of a killed program's ring shortly after the program ends.
_RELEASE_SECONDS = 1.0


def refuse_in_use(block_device: str, force: str | None, root: Path = _ROOT) -> None:
    """Raise DeviceInUseError unless the device at ``block_device`` is unused and empty.

    For an NVMe passthrough device (/dev/ng0n1) its block device (/dev/nvme0n1) is checked. ``force`` is the serial
    number of a drive whose partitions and contents may be lost; it has no effect on other drives. For an image file
    only the contents are checked. Raises OSError if the device cannot be read.
    """
    path = block_twin(block_device)
    folder = sysfs.block_folder(path, root)
    serial = blocks.serial(folder) if folder else ""
    if folder:
        found = blocks.holders(folder, root)
        if found.users:
            raise DeviceInUseError(block_device, "; ".join(found.users), serial, "unmount or release it first")
        _refuse_claimed(block_device, path, serial)
        if found.partitions and not _forced(force, serial):
            problem = f"it has partitions: {', '.join(found.partitions)}"
            raise DeviceInUseError(block_device, problem, serial, _cure(path, serial))
    if not os.path.exists(path) and path != block_device and not _forced(force, serial):
        problem = f"its contents cannot be read: {path} does not exist"
        raise DeviceInUseError(block_device, problem, serial, "make that device visible")
    if not _forced(force, serial):
        contents = signatures.of_file(path)
        if contents:
            raise DeviceInUseError(block_device, f"it holds {contents}", serial, _cure(path, serial))


def refuse_controller_in_use(pci_address: str, force: str | None, root: Path = _ROOT) -> None:
    """Raise DeviceInUseError if a namespace of the controller at ``pci_address`` is in use or holds data.

    ``pci_address`` is like "0000:03:00.0". Works for controllers under the kernel's nvme driver. The kernel lists no
    namespaces for other controllers: their user-level driver passes the contents to :func:`refuse_contents`.
    """
    for namespace in sorted((root / "sys/bus/pci/devices" / pci_address / "nvme").glob("nvme*/nvme*n*")):
        shared = re.fullmatch(r"nvme(\d+)c\d+n(\d+)", namespace.name)  # a path to a namespace that controllers share
        name = f"nvme{shared[1]}n{shared[2]}" if shared else namespace.name
        refuse_in_use(str(root / "dev" / name), force, root)


def refuse_contents(device: str, serial: str, read: signatures.Reader, nbytes: int, force: str | None) -> None:
    """Raise DeviceInUseError if ``read`` finds a filesystem, RAID or partition table on a device of ``nbytes``."""
    if _forced(force, serial):
        return
    contents = signatures.found(read, nbytes)
    if contents:
        raise DeviceInUseError(device, f"it holds {contents}", serial, _cure(device, serial))


def block_twin(path: str) -> str:
    """Return the block device of an NVMe passthrough device: /dev/nvme0n1 for /dev/ng0n1; other paths unchanged."""
    folder, name = os.path.split(os.path.realpath(path))
    return os.path.join(folder, f"nvme{name[2:]}") if re.fullmatch(r"ng\d+n\d+", name) else path


def _refuse_claimed(device: str, path: str, serial: str) -> None:
    """Ask the kernel whether the device is claimed by users that /sys does not list (ZFS, other namespaces' mounts)."""
    if not (os.path.exists(path) and stat.S_ISBLK(os.stat(path).st_mode)):
        return
    until = time.monotonic() + _RELEASE_SECONDS
    while True:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_EXCL))
            return
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
        if time.monotonic() > until:
            problem = "the kernel says that it is in use, but not by what"
            raise DeviceInUseError(device, problem, serial, f"see `lsof {path}` and release it first")
        time.sleep(0.01)


def _forced(force: str | None, serial: str) -> bool:
    return force is not None and serial != "" and force.strip() == serial


def _cure(path: str, serial: str) -> str:
    wiped = f"empty it (`wipefs --all {path}`, or all of it: `blkdiscard {path}`) or name another"
    return f"{wiped}; where all of it may be lost, force={serial!r} overwrites it" if serial else wiped
