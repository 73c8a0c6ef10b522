"""Opens an NVMe namespace through the kernel's passthrough device, and claims it."""

from __future__ import annotations

import errno
import os
import re
import stat

from fastio.errors import TransferError
from fastio.nvme.safety import block_twin, refuse_in_use
from fastio.offload.stores.store_places import Place

_PASSTHROUGH = re.compile(r"ng\d+n\d+")
_BLOCK_DEVICE = re.compile(r"nvme(\d+n\d+)")
_PERMISSION = "run as root, or give this user the device and its block device, which is looked at: setfacl -m u:NAME:rw"
_CURES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.ENOENT: "fastio-bench doctor lists the namespaces that are here; passthrough devices need Linux 5.13",
}


def open_namespace(path: str, force: str | None) -> Place:
    """Open "/dev/ng0n1", or "/dev/nvme0n1" for the same, and hold its block device, so that it cannot be mounted.

    The kernel itself would allow passthrough commands to a mounted device. Raises ValueError for a path that is no
    namespace, DeviceInUseError, and TransferError with a cure if one is known.
    """
    path = passthrough(path)
    try:
        named = _PASSTHROUGH.fullmatch(os.path.basename(os.path.realpath(path)))
        if not (stat.S_ISCHR(os.stat(path).st_mode) and named):
            raise ValueError(f"{path} is not an NVMe namespace: expected a device such as 'nvme:/dev/ng0n1'")
        refuse_in_use(path, force)
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        number = error.errno or errno.EIO
        cure = f" ({_CURES[number]})" if number in _CURES else ""
        raise TransferError(number, f"opening an NVMe namespace{cure}", path) from None
    block = block_twin(path)
    try:
        claimed = block != path and os.path.exists(block)
        return Place(path, fd, os.open(block, os.O_RDONLY | os.O_CLOEXEC | os.O_EXCL) if claimed else -1)
    except OSError as error:
        os.close(fd)
        raise TransferError(error.errno or errno.EIO, "claiming the namespace's block device", path) from None


def passthrough(path: str) -> str:
    """Return the passthrough device for itself or for its block device. ValueError for a partition."""
    folder, name = os.path.split(os.path.realpath(path))
    block = _BLOCK_DEVICE.fullmatch(name)
    if block is not None:
        return os.path.join(folder, f"ng{block[1]}")
    if _BLOCK_DEVICE.match(name):
        raise ValueError(f"{path} is a partition, which has no passthrough device: name it without 'nvme:'")
    return path
