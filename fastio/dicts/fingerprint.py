"""The fingerprint of a machine and a filesystem: times are comparable if their fingerprints are equal."""

from __future__ import annotations

import functools
import os
import sys
from hashlib import blake2b
from importlib import metadata
from typing import NamedTuple

from fastio.transports import registry

_MOUNTS = "/proc/self/mountinfo"
_GPUS = "/proc/driver/nvidia/gpus"
_LIBRARIES = (
    "numpy", "nvidia-dali-cuda110", "nvidia-dali-cuda120", "nvidia-dali-cuda130", "kvikio-cu12", "kvikio-cu13",
)  # fmt: skip


class Fingerprint(NamedTuple):
    """Dictionaries with equal fingerprints share a file. All fields are text; an unknown one is ``"unknown"``."""

    filesystem: str
    device: str
    kernel: str
    gpu: str
    fastio: str
    torch: str
    tools: str

    @property
    def file_name(self) -> str:
        """The name of the dictionary's file."""
        text = "\n".join(self)
        kind = "".join(letter for letter in self.filesystem if letter.isalnum()) or "unknown"
        return f"{kind}-{blake2b(text.encode(errors='surrogateescape'), digest_size=8).hexdigest()}.json"


def of(directory: str) -> Fingerprint:
    """The fingerprint for files in a directory. Raises nothing: a field that cannot be read is ``"unknown"``."""
    return Fingerprint(*_filesystem(directory), *machine())


@functools.cache
def machine() -> tuple[str, str, str, str, str]:
    """The fields that are the same for all filesystems: kernel, GPUs, versions of fastio, torch and the tools."""
    kernel = os.uname().release if hasattr(os, "uname") else sys.platform
    return kernel, _gpus(), _version("fastio"), _version("torch"), _tools()


def _filesystem(directory: str) -> tuple[str, str]:
    """Type and device of the filesystem: those of the longest mount point above the directory."""
    try:
        device = os.stat(directory).st_dev
        with open(_MOUNTS, "rb", buffering=0) as mounts:
            lines = mounts.read().decode(errors="surrogateescape").splitlines()
        number = f" {os.major(device)}:{os.minor(device)} "
        own = [line for line in lines if number in line]
        path = os.path.realpath(directory)
        # Files of some filesystems (btrfs) have another device number than their mount: then all mounts are searched.
        return _longest(own, path) or _longest(lines, path) or ("unknown", "unknown")
    except (OSError, ValueError, IndexError):
        return "unknown", "unknown"


def _longest(lines: list[str], path: str) -> tuple[str, str] | None:
    """Type and device of the longest mount point above the path; of two mounts on it, the later. None without any."""
    found, mount_point = None, ""
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, (kind, source, *_) = before.split(), after.split()
        number, point = fields[2], _unescape(fields[4])
        if len(point) >= len(mount_point) and (path + "/").startswith(point.rstrip("/") + "/"):
            # A filesystem without a device of its own (number 0:x) gets another number at every mount.
            name = f"{source} {point}" if number.startswith("0:") else f"{source} {number}"
            found, mount_point = (kind, name), point
    return found


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def _gpus() -> str:
    """The models of the NVIDIA GPUs, from the driver's files: CUDA is not initialised for it."""
    models: set[str] = set()
    try:
        for gpu in os.listdir(_GPUS):
            with open(os.path.join(_GPUS, gpu, "information"), errors="replace") as information:
                models.update(line.partition(":")[2].strip() for line in information if line.startswith("Model:"))
    except OSError:
        pass
    return ", ".join(sorted(models)) or "none"


def _tools() -> str:
    """The versions of the libraries that other tools use, and of plug-ins."""
    found = {name: version for name in _LIBRARIES if (version := _version(name)) != "unknown"}
    found |= registry.plugin_versions()
    return ", ".join(f"{name} {version}" for name, version in sorted(found.items()))


def _version(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is None:
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            version = "unknown"
    return str(version)
