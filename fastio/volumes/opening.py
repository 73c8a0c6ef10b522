"""Finds the device that a text names, and where the volume's name ends and an object's begins.

``file:/disk/volume/run/step-100.pt``: the volume is the part that is a regular file or a block device, the object's
name the rest. The same holds for ``nvme:``, with the device of a namespace. The volume's name has no slash in
``vfio:``, ``spdk:``, and ``nvme:`` with the address of a controller.
"""

from __future__ import annotations

import importlib
import os
import stat
from typing import Protocol, cast

from fastio.errors import UnsupportedError, VolumeError
from fastio.files.open_file import path_of
from fastio.remote.urls import cut_url, is_remote
from fastio.volumes.device import Device
from fastio.volumes.drivers import address_in, drivers, is_address

# Who opens a device, by the prefix; imported at first use.
_OPENERS = {
    "file": "fastio.volumes.file_device",
    "nvme": "fastio.volumes.namespace_device",
    "vfio": "fastio.volumes.namespace_device",
    "spdk": "fastio.volumes.namespace_device",
}
_DEVICES = "/dev"
PREFIXES = tuple(f"{kind}:" for kind in _OPENERS)


class _Opener(Protocol):
    def open(self, kind: str, place: str, write: bool) -> Device: ...

    def create(self, kind: str, place: str, nbytes: int | None, force: str | None) -> Device: ...


def is_in_volume(path: str) -> bool:
    """Whether a path is of a volume: it begins with one of :data:`PREFIXES`, and is not the URL ``file://``."""
    return path.startswith(PREFIXES) and not is_remote(path)


def tools_of(path: str) -> tuple[str, ...]:
    """The tools that alone move the bytes of a volume's objects; none where the tools of files do.

    Of a controller that is named by its address alone, the drivers that can drive it. VolumeError as they raise.
    """
    kind, _, rest = path.partition(":")
    if kind == "file" or not is_in_volume(path):
        return ()
    place = rest.partition("/")[0]
    return tuple(drivers(place)) if kind == "nvme" and is_address(place) else (kind,)


def namespace_of(path: str) -> str:
    """What dictionaries call the namespace that a volume lies on: it is the same for two drivers of one controller.

    Empty for a volume on a file, and for a path that is in none.
    """
    if not tools_of(path):
        return ""
    place = split(path)[0].partition(":")[2]
    address = address_in(place)
    return place if not address or place.startswith("/") else address.lower()


def split(path: str) -> tuple[str, str]:
    """The volume that a path is in, with its prefix, and the name of the object, which may be empty.

    VolumeError if there is no file or device where the volume should be.
    """
    kind, _, rest = path.partition(":")
    place, _, name = rest.partition("/")
    if kind in ("vfio", "spdk") or (kind == "nvme" and is_address(place)):
        return f"{kind}:{place}", name
    at = 0
    while at < len(rest):
        at = rest.find("/", at + 1)
        at = len(rest) if at < 0 else at
        try:
            mode = os.stat(rest[:at]).st_mode
        except (OSError, ValueError):
            break
        if not stat.S_ISDIR(mode):
            return f"{kind}:{rest[:at]}", rest[at + 1 :]
    raise VolumeError(
        f"{path}: there is no volume on this path: expected {kind}:VOLUME/NAME, where VOLUME is a regular file or a "
        "block device; make one with `fastio volume create`"
    )


def folder_of(path: str) -> str:
    """The folder of a file, or of the file or device that a volume lies on; empty for the working folder.

    Of namespaces it is that of devices: one dictionary has the times of all. Of a remote file it is that of its local
    copies.
    """
    if is_remote(path):
        from fastio.remote import cache_folder  # not at import: few files are remote

        return cache_folder.folder("files")
    if not is_in_volume(path):
        return os.path.dirname(path)
    kind, _, place = split(path)[0].partition(":")
    return os.path.dirname(place) if kind == "file" else _DEVICES


def outside_volumes(argument: str, value: object) -> str:
    """The text of the path of a file or folder that is written or read as such. TypeError for what is no path.

    VolumeError for a path in a volume: it would be taken for one in a folder of the name ``file:``. UnsupportedError
    for a URL.
    """
    path = path_of(argument, value)
    refuse_volume(path)
    refuse_remote(path)
    return path


def refuse_remote(path: str) -> None:
    """Raise UnsupportedError for the URL of a remote place, where only a path on this machine is taken."""
    if is_remote(path):
        raise UnsupportedError(
            f"{path}: this cannot be at a remote place, expected a path on this machine: name one, and copy its files "
            "afterwards; a folder whose own name is so is named by its whole path"
        )
    refuse_cut_url(path)


def refuse_cut_url(path: str) -> None:
    """Raise UnsupportedError for what pathlib makes of a URL: nothing is written into a new folder ``s3:``."""
    url = cut_url(path)
    if url:
        raise UnsupportedError(
            f"{path}: there is no folder {path.partition('/')[0]}, and a URL has two slashes, expected {url}: pass "
            f"URLs as text, since pathlib makes one slash of two; a new folder whose own name is so is ./{path}"
        )


def refuse_volume(path: str) -> None:
    """Raise VolumeError for a path in a volume, which holds single objects that a save or a copy makes."""
    if is_in_volume(path):
        raise VolumeError(
            f"{path}: this cannot be in a volume, expected a path in a filesystem: name one, and copy files into the "
            f"volume by `fastio cp`; a folder or file whose own name begins so is ./{path}"
        )


def open(where: str, write: bool) -> Device:
    """The device of a volume, which is there. Without a prefix it is a file's or a block device's path."""
    kind, place = _kind(where)
    return _opener(kind).open(kind, place, write)


def create(where: str, nbytes: int | None, force: str | None) -> Device:
    """The device for a new volume: a new file of so many bytes, or a device that holds nothing."""
    kind, place = _kind(where)
    return _opener(kind).create(kind, place, nbytes, force)


def _kind(where: str) -> tuple[str, str]:
    if is_remote(where):
        raise UnsupportedError(
            f"{where}: no volume can be at a remote place, expected a file or a device of this machine; name one "
            "(`fastio inspect` lists what a file of tensors or a checkpoint at a URL holds)"
        )
    if not is_in_volume(where):
        return "file", where
    kind, _, place = where.partition(":")
    return kind, place


def _opener(kind: str) -> _Opener:
    return cast(_Opener, importlib.import_module(_OPENERS[kind]))
