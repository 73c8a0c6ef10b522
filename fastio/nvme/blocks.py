"""Finds what uses a block device: mounts, devices built on it, swap, partitions."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from fastio.nvme import sysfs

_ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class Holders:
    """The users and partitions of a block device. Partitions alone do not mean that it is in use.

    Each user is a phrase, such as "nvme0n1p2 is mounted on /home" or "dm-0 (cryptroot) is built on it".
    """

    users: tuple[str, ...]
    partitions: tuple[str, ...]


def holders(folder: Path, root: Path = _ROOT) -> Holders:
    """Return what uses the block device of this /sys folder, or a partition of it."""
    partitions = [name for name in sysfs.names(folder) if (folder / name / "partition").exists()]
    users: list[str] = []
    for part in (folder, *(folder / name for name in partitions)):
        number = sysfs.text(part / "dev")
        users += [f"{part.name} is mounted on {point}" for point in _mounts(number, part.name, root)]
        for name in sysfs.names(part / "holders"):
            users.append(f"{_named(part / 'holders' / name)} is built on {part.name}")
        if part.name in _swaps(root):
            users.append(f"{part.name} is swap space in use")
    return Holders(tuple(users), tuple(partitions))


def serial(folder: Path) -> str:
    """Return the serial number of the drive of a block device; "" if there is none."""
    whole = folder.parent if (folder / "partition").exists() else folder
    number = sysfs.text(whole / "device/serial") or sysfs.text(whole / "serial")  # NVMe and most; virtio
    if number:
        return number
    try:
        page = (whole / "device/vpd_pg80").read_bytes()  # SCSI: four bytes of header
    except OSError:
        return ""
    return page[4:].decode("ascii", "replace").strip(" \0")


def _mounts(number: str, name: str, root: Path) -> list[str]:
    """Return the mount points in this process's mount namespace.

    btrfs and others list the device name instead of its number.
    """
    points = []
    for line in sysfs.text(root / "proc/self/mountinfo").splitlines():
        before, _, source = line.partition(" - ")
        fields = before.split(" ")
        from_it = source.split(" ")[1:2] == [f"/dev/{name}"]
        if len(fields) > 4 and (fields[2] == number or from_it):
            points.append(re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), fields[4]))
    return points


def _swaps(root: Path) -> set[str]:
    lines = sysfs.text(root / "proc/swaps").splitlines()[1:]
    return {line.split()[0].rpartition("/")[2] for line in lines if line.strip()}


def _named(folder: Path) -> str:
    """Return a holder's name, with its device-mapper name if it has one."""
    name = sysfs.text(folder / "dm/name")
    return f"{folder.name} ({name})" if name else folder.name
