"""The emulated machine's parts, from Debian packages: downloaded and unpacked into a folder, never installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

_WANTED = ("qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios", "busybox-static", "cpio")
_KERNEL = "linux-image-amd64"  # depends on the kernel of this release
# Of the kernel's 450 MB only what a guest may need: NVMe, VFIO and the checksums below them.
_KERNEL_FOLDERS = ("crypto", "lib", "block", "virt", "drivers/nvme", "drivers/vfio")
_KERNEL_PARTS = ("./boot/vmlinuz-*", *(f"./*lib/modules/*/kernel/{folder}/*" for folder in _KERNEL_FOLDERS))
_NEEDED = ("usr/bin/qemu-system-x86_64", "boot/vmlinuz-*", "**/bin/busybox", "**/bin/cpio", "**/vfio-pci.ko*")


class RigMissingError(Exception):
    """This machine cannot have the rig; the text says why and what would help."""


def set_up(folder: Path) -> Path:
    """Where the packages are unpacked: ``folder/root``. Once: a machine that has them downloads nothing."""
    root, stamp = folder / "root", folder / "versions"
    if not stamp.exists():
        for program in ("apt-get", "apt-cache", "dpkg-deb", "tar"):
            if shutil.which(program) is None:
                raise RigMissingError(f"{program} is missing: the emulated machine is made of Debian's packages")
        if os.uname().machine != "x86_64":
            raise RigMissingError(f"the guest's program is built here, for x86_64, and this is {os.uname().machine}")
        _fill(folder, root)
        stamp.write_text("\n".join(sorted(package.stem for package in (folder / "packages").iterdir())) + "\n")
    return root


def versions(folder: Path) -> list[str]:
    """Of the packages that make the machine what it is: ``name_version_architecture``."""
    told = (folder / "versions").read_text().replace("%3a", ":").split()
    return [name for name in told if name.startswith(("qemu-system-x86", "seabios", "busybox", "linux-image"))]


def _fill(folder: Path, root: Path) -> None:
    packages = folder / "packages"
    for old in (packages, root):
        shutil.rmtree(old, ignore_errors=True)
    packages.mkdir(parents=True)
    root.mkdir()
    try:
        _download(packages, ())
    except RigMissingError:  # no lists of packages, or old ones: get some of our own, and leave the system's alone
        own = _lists_of_our_own(folder)
        _run("apt-get", *own, "update", "--quiet=2")
        _download(packages, own)
    for package in sorted(packages.iterdir()):
        files = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", os.fspath(package)], stdout=subprocess.PIPE)
        parts = ["--wildcards", *_KERNEL_PARTS] if package.name.startswith("linux-image") else []
        # Its status does not tell: a kernel without one of the folders is fine. What is needed is looked for below.
        command = ["tar", "-x", "-C", os.fspath(root), *parts]
        subprocess.run(command, stdin=files.stdout, check=False, capture_output=True)
        files.wait()
    lacking = [pattern for pattern in _NEEDED if not any(root.glob(pattern))]
    if lacking:
        raise RigMissingError(f"{', '.join(lacking)} not found in the packages of {packages}: remove it and try again")


def _download(packages: Path, options: Sequence[str]) -> None:
    # What QEMU needs and this machine lacks: what an installation would bring.
    simulated = _run("apt-get", *options, "install", "--simulate", "--no-install-recommends", "qemu-system-x86")
    lacking = [line.split()[1] for line in simulated.splitlines() if line.startswith("Inst ")]
    told = _run("apt-cache", *options, "depends", _KERNEL)
    kernels = [line.split()[-1] for line in told.splitlines() if "Depends: linux-image-" in line]
    if not kernels:
        raise RigMissingError(f"{_KERNEL} names no kernel: this is no Debian")
    _run("apt-get", *options, "download", "--quiet=2", *{*_WANTED, *lacking, kernels[0]}, folder=packages)


def _lists_of_our_own(folder: Path) -> list[str]:
    state, cache = folder / "apt/lists", folder / "apt/cache"
    for path in (state / "partial", cache / "archives/partial"):
        path.mkdir(parents=True, exist_ok=True)
    return ["-o", f"Dir::State::lists={state.absolute()}", "-o", f"Dir::Cache={cache.absolute()}"]


def _run(*command: str, folder: Path | None = None) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RigMissingError(f"`{' '.join(command)}` failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
