"""Lists what prevents each driver from using a controller, and the commands that change it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fastio.nvme.controllers import Controller, Namespace
from fastio.nvme.facts import Facts

DRIVERS = ("uring", "nvme", "vfio", "spdk")

_PASSTHROUGH = (5, 19)  # the first kernel with IORING_OP_URING_CMD for NVMe
_UNPRIVILEGED = (6, 2)  # the first in which passthrough reads and writes need no CAP_SYS_ADMIN
_LEAST_MEMLOCK = 64 << 20  # bytes: queues, the bounce buffer and a few activations
_HUGE_PAGES = 128  # of 2 MiB, for SPDK's queues and requests


@dataclass(frozen=True, slots=True)
class Obstacle:
    """What prevents ``driver`` from using a controller. ``commands`` are for a shell, in order; may be empty."""

    driver: str
    problem: str
    commands: tuple[str, ...] = ()


def obstacles(controller: Controller, facts: Facts) -> list[Obstacle]:
    """Return all obstacles, by driver. A driver without one can be used at once."""
    ways = {"uring": _uring, "nvme": _nvme, "vfio": _vfio, "spdk": _spdk}
    return [Obstacle(driver, *found) for driver in DRIVERS for found in ways[driver](controller, facts)]


Finding = tuple[str, tuple[str, ...]]


def _uring(controller: Controller, facts: Facts) -> Iterator[Finding]:
    if facts.io_uring_disabled:
        yield "io_uring is forbidden here (the driver threads takes over)", ("sudo sysctl kernel.io_uring_disabled=0",)
    yield from _requires_kernel_driver(controller)
    for namespace in controller.namespaces:
        yield from _in_use_or_not_empty(namespace)
        yield from _locked(namespace, f"/dev/{namespace.name}")


def _nvme(controller: Controller, facts: Facts) -> Iterator[Finding]:
    if facts.kernel < _PASSTHROUGH:
        have, need = (".".join(map(str, version)) for version in (facts.kernel, _PASSTHROUGH))
        yield f"Linux {have} has no io_uring passthrough for NVMe: it came with {need}", ()
    if facts.io_uring_disabled:
        yield "io_uring is forbidden here", ("sudo sysctl kernel.io_uring_disabled=0",)
    yield from _requires_kernel_driver(controller)
    for namespace in controller.namespaces:
        yield from _in_use_or_not_empty(namespace)
        if not namespace.generic:
            yield f"{namespace.name} has no passthrough device (/dev/ng...) here", ()
            continue
        yield from _locked(namespace, namespace.generic)
        if _PASSTHROUGH <= facts.kernel < _UNPRIVILEGED and not facts.root:
            yield "before Linux 6.2 only root (CAP_SYS_ADMIN) may send commands", ("sudo -E python ...",)


def _vfio(controller: Controller, facts: Facts) -> Iterator[Finding]:
    if controller.transport != "pcie":
        yield f"VFIO needs a device on PCIe, and this one is reached over {controller.transport}", ()
        return
    yield from _iommu(controller, facts)
    missing = [name for name in ("vfio_pci", "vfio_iommu_type1") if name not in facts.vfio_modules]
    if missing:
        yield f"not loaded: {', '.join(missing)}", (f"sudo modprobe -a {' '.join(missing)}",)
    for namespace in controller.namespaces:
        yield from _in_use_or_not_empty(namespace)
    if controller.driver != "vfio-pci":
        holder = f"the kernel's driver {controller.driver} has it" if controller.driver else "no driver has it"
        yield f"{holder}: bind it to vfio-pci", _bind(controller.address, "vfio-pci", bound=bool(controller.driver))
    for mate in controller.group_mates:
        if mate.driver not in ("", "vfio-pci"):
            problem = (
                f"VFIO assigns IOMMU group {controller.iommu_group} as a whole, and {mate.driver} has {mate.address}"
            )
            yield problem, _bind(mate.address, "vfio-pci", bound=True)
    if controller.group_locked:
        node = f"/dev/vfio/{controller.iommu_group}"
        yield f"this user may not open {node}", (f"sudo chown $USER {node}",)
    if 0 <= facts.memlock < _LEAST_MEMLOCK and not facts.root:
        problem = f"only {facts.memlock >> 10} KiB may be locked in memory, and DMA needs locked buffers"
        yield problem, ("ulimit -l unlimited  # as root, or by /etc/security/limits.conf",)


def _spdk(controller: Controller, facts: Facts) -> Iterator[Finding]:
    if facts.no_spdk:
        yield facts.no_spdk, ()
    for namespace in controller.namespaces:
        yield from _in_use_or_not_empty(namespace)
    if controller.transport != "pcie":
        return  # over TCP it uses ordinary pages and its own connection
    yield from _iommu(controller, facts)
    if controller.driver != "vfio-pci":
        holder = f"the kernel's driver {controller.driver} has it" if controller.driver else "no driver has it"
        commands = ("sudo modprobe vfio-pci", *_bind(controller.address, "vfio-pci", bound=bool(controller.driver)))
        yield f"{holder}: bind it to vfio-pci", commands
    if facts.huge_pages_free < _HUGE_PAGES:
        pages = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
        problem = f"{facts.huge_pages_free} huge pages of 2 MiB are free: SPDK needs {_HUGE_PAGES}"
        yield problem, (f"echo {_HUGE_PAGES} | sudo tee {pages}",)


def _requires_kernel_driver(controller: Controller) -> Iterator[Finding]:
    if controller.driver != "nvme":
        holder = f"{controller.driver} has it" if controller.driver else "no driver has it"
        yield f"{holder}, not the kernel's nvme", _give_back(controller)
    elif not controller.namespaces:
        yield "it has no namespace that the kernel can use", ()


def _iommu(controller: Controller, facts: Facts) -> Iterator[Finding]:
    if controller.iommu_group or facts.unsafe_no_iommu:
        return
    parameter = "amd_iommu=on" if facts.processor == "AuthenticAMD" else "intel_iommu=on"
    if facts.iommu_groups:
        yield f"the kernel's IOMMU does not cover {controller.address}", ()
        return
    if facts.iommu_units:
        problem = "the IOMMU is there, but off"
    else:
        problem = "no IOMMU was found: switch it on in the firmware (VT-d, AMD-Vi, SMMU), or in the virtual machine"
    line = f"sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&{parameter} iommu=pt /' /etc/default/grub"
    yield problem, (line, "sudo update-grub && sudo reboot")


def _in_use_or_not_empty(namespace: Namespace) -> Iterator[Finding]:
    device = f"/dev/{namespace.name}"
    if namespace.users:
        yield f"in use: {'; '.join(namespace.users)}", ()
    elif namespace.partitions or namespace.holds:
        found = namespace.holds or f"partitions ({', '.join(namespace.partitions)})"
        yield f"{device} holds {found}", (f"sudo wipefs --all {device}  # or force=<its serial number>",)
    elif namespace.unread:
        yield f"what {device} holds cannot be read: {namespace.unread}", (f"sudo setfacl -m u:$USER:rw {device}",)


def _locked(namespace: Namespace, node: str) -> Iterator[Finding]:
    if any(locked.endswith(node) for locked in namespace.locked):
        yield f"this user may not open {node}", (f"sudo setfacl -m u:$USER:rw {node}",)


def _bind(address: str, driver: str, bound: bool) -> tuple[str, ...]:
    device = f"/sys/bus/pci/devices/{address}"
    unbind = (f"echo {address} | sudo tee {device}/driver/unbind",) if bound else ()
    return (
        f"echo {driver} | sudo tee {device}/driver_override",
        *unbind,
        f"echo {address} | sudo tee /sys/bus/pci/drivers_probe",
    )


def _give_back(controller: Controller) -> tuple[str, ...]:
    if controller.transport != "pcie":
        return ()
    return _bind(controller.address, "nvme", bound=bool(controller.driver))
