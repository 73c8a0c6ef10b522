"""Downloads Debian packages for the emulated machine and unpacks them into a folder, without installing them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_WANTED = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios", "busybox-static", "cpio")
_KERNEL = "linux-image-amd64"  # depends on the kernel of this release
# Only the parts of the 450 MB kernel that the guest may need: NVMe, VFIO and the checksums that they use.
_KERNEL_FOLDERS = ("crypto", "lib", "block", "virt", "drivers/nvme", "drivers/vfio")
_KERNEL_PARTS = ("./boot/vmlinuz-*", *(f"./*lib/modules/*/kernel/{folder}/*" for folder in _KERNEL_FOLDERS))
_NEEDED = ("usr/bin/qemu-system-x86_64", "boot/vmlinuz-*", "**/bin/busybox", "**/bin/cpio", "**/vfio-pci.ko*")


class RigMissingError(Exception):
    """The emulated machine cannot be set up here; the text gives the reason and the cure."""


def set_up(folder: Path) -> Path:
    """Download and unpack the packages, unless that is done already. Returns ``folder/root``."""
    root, stamp = folder / "root", folder / "versions"
    if not stamp.exists():
        for program in ("apt-get", "apt-cache", "dpkg-deb", "tar"):
            if shutil.which(program) is None:
                raise RigMissingError(f"{program} is missing: the emulated machine needs Debian packages")
        if os.uname().machine != "x86_64":
            raise RigMissingError(f"the guest's program must be built on x86_64, and this is {os.uname().machine}")
        _fill(folder, root)
        stamp.write_text("\n".join(sorted(package.stem for package in (folder / "packages").iterdir())) + "\n")
    return root


def versions(folder: Path) -> list[str]:
    """Return the versions of the packages that define the machine: ``name_version_architecture``."""
    names = (folder / "versions").read_text().replace("%3a", ":").split()
    return [name for name in names if name.startswith(("qemu-system-x86", "seabios", "busybox", "linux-image"))]


def _fill(folder: Path, root: Path) -> None:
    packages = folder / "packages"
    for old in (packages, root):
        shutil.rmtree(old, ignore_errors=True)
    packages.mkdir(parents=True)
    root.mkdir()
    try:
        _download(packages, ())
    except RigMissingError:  # package lists are missing or old: use separate ones, without changing the system's
        own = _separate_lists(folder)
        _run("apt-get", *own, "update", "--quiet=2")
        _download(packages, own)
    for package in sorted(packages.iterdir()):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", os.fspath(package)], stdout=subprocess.PIPE)
        parts = ["--wildcards", *_KERNEL_PARTS] if package.name.startswith("linux-image") else []
        # The status is ignored: a kernel may lack one of the folders. Needed files are checked below.
        command = ["tar", "-x", "-C", os.fspath(root), *parts]
        subprocess.run(command, stdin=files.stdout, check=False, capture_output=True)
        files.wait()
    lacking = [pattern for pattern in _NEEDED if not any(root.glob(pattern))]
    if lacking:
        raise RigMissingError(f"{', '.join(lacking)} not found in the packages of {packages}: remove it and try again")


def _download(packages: Path, options: Sequence[str]) -> None:
    # The packages that QEMU needs and this machine lacks: those that an installation would add.
    simulated = _run("apt-get", *options, "install", "--simulate", "--no-install-recommends", "qemu-system-x86")
    lacking = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    depends = _run("apt-cache", *options, "depends", _KERNEL)
    kernels = [line.split()[-1] for line in depends.splitlines() if "Depends: linux-image-" in line]
    if not kernels:
        raise RigMissingError(f"{_KERNEL} depends on no kernel: expected a Debian system")
    _run("apt-get", *options, "download", "--quiet=2", *{*_WANTED, *lacking, kernels[0]}, folder=packages)


def _separate_lists(folder: Path) -> list[str]:
    state, cache = folder / "apt/lists", folder / "apt/cache"
    for path in (state / "partial", cache / "archives/partial"):
        path.mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::lists={state.absolute()}", "-o", f"Dir::Cache={cache.absolute()}"]


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RigMissingError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
