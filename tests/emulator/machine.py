"""Defines the emulated machine: QEMU's command line, its disks and their faults."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
BAR_NBYTES = 16 * MIB
BAR_SLOT = 5


@dataclass(frozen=True)
class Disk:
    """A namespace of ``nbytes`` with LBAs of ``lba`` bytes, on the controller in PCI slot ``slot``.

    ``mdts``: the largest transfer is 4096 << mdts bytes. ``bad_reads``, ``bad_writes``: blocks of 4096 bytes whose
    first sector fails. ``written_per_second``: a limit in bytes, which makes larger writes time out.
    """

    slot: int
    nbytes: int
    lba: int
    mdts: int
    nsid: int = 1
    bad_reads: tuple[int, ...] = ()
    bad_writes: tuple[int, ...] = ()
    written_per_second: int = 0

    @property
    def name(self) -> str:
        return f"disk{self.slot}n{self.nsid}"


# guest/plan.sh uses the slots, too.
DISKS = (
    Disk(3, 64 * MIB, 512, mdts=5),
    Disk(4, 64 * MIB, 4096, mdts=2),
    Disk(6, 16 * MIB, 512, mdts=5, bad_reads=tuple(range(77, 4096, 170)), bad_writes=tuple(range(50, 4096, 190))),
    Disk(7, 16 * MIB, 512, mdts=5, written_per_second=12288),
    Disk(8, 16 * MIB, 512, mdts=5),
    Disk(8, 16 * MIB, 4096, mdts=5, nsid=2),
)
PEER_DISK = DISKS[4]  # used by test_peer


def command(root: Path, initramfs: Path, folder: Path, only: str) -> list[str]:
    """Return QEMU's command line. The console is standard input and output.

    ``folder`` has the disks' images and the BAR. ``only``: run only the tests whose names contain this.
    """
    kernel = next(root.glob("boot/vmlinuz-*"))
    return [
        os.fspath(root / "usr/bin/qemu-system-x86_64"),
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio"),
        *("-L", os.fspath(root / "usr/share/qemu"), "-L", os.fspath(root / "usr/share/seabios")),
        *("-machine", "q35,kernel-irqchip=split", "-accel", "tcg", "-cpu", "max", "-smp", "2", "-m", "512"),
        *("-device", "intel-iommu,intremap=on,caching-mode=on"),
        *("-qmp", f"unix:{folder / 'qmp'},server=on,wait=off"),
        # Behaviour that the NVMe specification leaves undefined is an error of the driver.
        *("-D", os.fspath(folder / "trace"), "-trace", "pci_nvme_ub_*"),
        *("-kernel", os.fspath(kernel), "-initrd", os.fspath(initramfs), "-append", _kernel_words(only)),
        *("-object", f"memory-backend-file,id=bar,size={BAR_NBYTES},mem-path={folder / 'bar'},share=on"),
        *("-device", f"ivshmem-plain,memdev=bar,addr={BAR_SLOT}"),
        *_disks(folder),
    ]


def environment(root: Path) -> dict[str, str]:
    """Return the environment in which QEMU finds its unpacked libraries and modules, and then the system's."""
    folders = [root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"]
    modules = os.fspath(root / "usr/lib/x86_64-linux-gnu/qemu")
    return {**os.environ, "LD_LIBRARY_PATH": ":".join(map(os.fspath, folders)), "QEMU_MODULE_DIR": modules}


def _kernel_words(only: str) -> str:
    # No retries, so that a failed command is reported at once.
    kernel = "console=ttyS0 quiet loglevel=1 panic=-1 mitigations=off tsc=reliable"
    kernel += " intel_iommu=on nvme_core.max_retries=0"
    faulty = next(disk for disk in DISKS if disk.bad_reads)
    # The kernel passes parameters that it does not know to the first process as its environment.
    environment = {
        "FAULTY": f"0000:00:{faulty.slot:02}.0",
        "BAD_READS": ",".join(map(str, faulty.bad_reads)),
        "BAD_WRITES": ",".join(map(str, faulty.bad_writes)),
        "ONLY": f'"{only}"',
    }
    return " ".join([kernel, *(f"{name}={value}" for name, value in environment.items())])


def _disks(folder: Path) -> list[str]:
    words: list[str] = []
    controllers: set[int] = set()
    for disk in DISKS:
        if disk.slot not in controllers:
            controllers.add(disk.slot)
            options = f"serial=rig{disk.slot},mdts={disk.mdts},max_ioqpairs=8,addr={disk.slot}"
            words += ["-device", f"nvme,id=c{disk.slot},{options}"]
        words += ["-blockdev", f"driver=file,filename={folder / disk.name},node-name={disk.name}-file,cache.direct=off"]
        node = f"{disk.name}-file"
        if disk.bad_reads or disk.bad_writes:
            node = f"{disk.name}-faults"
            words += ["-blockdev", f"driver=blkdebug,node-name={node},image={disk.name}-file,{_errors(disk)}"]
        if disk.written_per_second:
            limit = f"{disk.name}-limit"
            node = f"{disk.name}-slow"
            words += ["-object", f"throttle-group,id={limit},x-bps-write={disk.written_per_second}"]
            words += ["-blockdev", f"driver=throttle,node-name={node},throttle-group={limit},file={disk.name}-file"]
        words += ["-blockdev", f"driver=raw,node-name={disk.name},file={node}"]
        lba = f"logical_block_size={disk.lba},physical_block_size={disk.lba}"
        words += ["-device", f"nvme-ns,drive={disk.name},bus=c{disk.slot},nsid={disk.nsid},{lba}"]
    return words


def _errors(disk: Disk) -> str:
    rules = [("read", block) for block in disk.bad_reads] + [("write", block) for block in disk.bad_writes]
    return ",".join(
        f"inject-error.{number}.event=none,inject-error.{number}.iotype={kind},"
        f"inject-error.{number}.errno=5,inject-error.{number}.sector={block * 8}"
        for number, (kind, block) in enumerate(rules)
    )
