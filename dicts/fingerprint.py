"""What makes times comparable: the filesystem and its device, the kernel, the GPUs and the versions of the tools."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass

_MOUNTS = "/proc/self/mountinfo"
_GPUS = "/proc/driver/nvidia/gpus"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Dictionaries with equal fingerprints share a file. All fields are text; what is not known is ``"unknown"``."""

    filesystem: str
    device: str
    kernel: str
    gpu: str
    fastio: str
    torch: str

    @property
    def file_name(self) -> str:
        """The name of the dictionary's file."""
        from hashlib import blake2b

        text = "\n".join(asdict(self).values())
        kind = "".join(letter for letter in self.filesystem if letter.isalnum()) or "unknown"
        return f"{kind}-{blake2b(text.encode(errors='surrogateescape'), digest_size=8).hexdigest()}.json"


def of(directory: str) -> Fingerprint:
    """The fingerprint of the machine, for files in a directory. Never raises; what cannot be found out is unknown."""
    filesystem, device = _filesystem(directory)
    kernel = os.uname().release if hasattr(os, "uname") else sys.platform
    return Fingerprint(filesystem, device, kernel, _gpus(), _version("fastio"), _version("torch"))


def _filesystem(directory: str) -> tuple[str, str]:
    """Type and device of the filesystem: of the longest mount point above the directory."""
    path = os.path.realpath(directory)
    found, mount_point = ("unknown", "unknown"), ""
    try:
        with open(_MOUNTS, errors="surrogateescape") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                fields, (kind, source, *_) = before.split(), after.split()
                number, point = fields[2], _unescape(fields[4])
                if len(point) >= len(mount_point) and (path + "/").startswith(point.rstrip("/") + "/"):
                    # A filesystem without a device of its own (number 0:x) gets another number at every mount.
                    name = f"{source} {point}" if number.startswith("0:") else f"{source} {number}"
                    found, mount_point = (kind, name), point
    except (OSError, ValueError, IndexError):
        pass
    return found


def _unescape(text: str) -> str:
    for code, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, letter)
    return text


def _gpus() -> str:
    """The models of the NVIDIA GPUs, from the driver's own files: nothing of CUDA is initialised for it."""
    models: set[str] = set()
    try:
        for gpu in os.listdir(_GPUS):
            with open(os.path.join(_GPUS, gpu, "information"), errors="replace") as information:
                models.update(line.partition(":")[2].strip() for line in information if line.startswith("Model:"))
    except OSError:
        pass
    return ", ".join(sorted(models)) or "none"


def _version(package: str) -> str:
    version = getattr(sys.modules.get(package), "__version__", None)
    if version is None:
        from importlib.metadata import PackageNotFoundError
        from importlib.metadata import version as installed

        try:
            version = installed(package)
        except PackageNotFoundError:
            version = "unknown"
    return str(version)
