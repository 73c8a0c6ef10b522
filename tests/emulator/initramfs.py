"""Builds the guest's initramfs: busybox, the kernel modules for NVMe and VFIO, and the test program."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
from pathlib import Path

# Some are not a dependency of another module: the kernel requests them by name at run time.
_MODULES = (
    "crct10dif_generic",
    "crc64",
    "crc64_rocksoft_generic",
    "crc64-rocksoft",
    "nvme",
    "vfio-pci",
    "vfio_iommu_type1",
)
_GUEST = Path(__file__).parent / "guest"


def build(root: Path, program: Path, folder: Path) -> Path:
    """Build the archive from unpacked packages. It is uncompressed, because the emulated CPU decompresses slowly."""
    tree = folder / "initramfs"
    shutil.rmtree(tree, ignore_errors=True)
    for name in ("bin", "modules", "proc", "run", "sys", "dev", "tmp"):
        (tree / name).mkdir(parents=True)
    shutil.copy(_program(root, "busybox"), tree / "bin/busybox")
    for number, path in enumerate(_ordered(root)):
        (tree / f"modules/{number:02}-{_name(path)}.ko").write_bytes(_contents(path))
    shutil.copy(_GUEST / "init.sh", tree / "init")
    shutil.copy(_GUEST / "plan.sh", tree / "plan.sh")
    shutil.copy(program, tree / "rig")
    for name in ("init", "rig"):
        (tree / name).chmod(0o755)
    archive = folder / "initramfs.cpio"
    names = "\n".join(os.fspath(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    command = [os.fspath(_program(root, "cpio")), "-o", "-H", "newc", "-R", "0:0", "--quiet"]
    with archive.open("wb") as out:
        subprocess.run(command, cwd=tree, input=names.encode(), stdout=out, check=True)
    return archive


def _program(root: Path, name: str) -> Path:
    return next(root.glob(f"**/bin/{name}"))  # in some releases they lie below usr/


def _name(path: Path) -> str:
    return path.name.partition(".ko")[0]


def _contents(path: Path) -> bytes:
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def _ordered(root: Path) -> list[Path]:
    """Return the modules, each after its dependencies. Missing ones are built into the kernel or not needed."""
    found = {_name(path).replace("-", "_"): path for path in root.glob("**/modules/*/kernel/**/*.ko*")}
    ordered: dict[Path, None] = {}

    def add(name: str) -> None:
        path = found.get(name.replace("-", "_"))
        if path is None or path in ordered:
            return
        for needed in _depends(_contents(path)):
            add(needed)
        ordered[path] = None

    for name in _MODULES:
        add(name)
    return list(ordered)


def _depends(module: bytes) -> list[str]:
    """Return a module's dependencies, from ``depends=a,b`` in its modinfo section, as depmod does."""
    begin = module.index(b"\0depends=") + len(b"\0depends=")
    names = module[begin : module.index(b"\0", begin)].decode()
    return names.split(",") if names else []
