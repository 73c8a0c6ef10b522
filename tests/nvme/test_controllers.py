"""Tests the list of NVMe controllers and each driver's obstacles, on machines made of files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fastio.nvme import DRIVERS, Controller, Obstacle, controllers, obstacles
from fastio.nvme.facts import Facts, facts
from machines import Machine, recorded

MIB = 1 << 20
ADDRESS = "0000:03:00.0"
# A machine without obstacles.
READY = Facts(
    kernel=(6, 8),
    processor="GenuineIntel",
    iommu_units=("dmar0",),
    iommu_groups=12,
    kernel_line=("intel_iommu=on",),
    vfio_modules=("vfio", "vfio_pci", "vfio_iommu_type1"),
    unsafe_no_iommu=False,
    io_uring_disabled=False,
    huge_pages_free=1024,
    memlock=-1,
    root=False,
    no_spdk="",
)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.controller(ADDRESS, number=0, serial="S4EV1234", group=5)
    return made


def only(machine: Machine) -> Controller:
    (found,) = controllers(machine.root)
    return found


def of(driver: str, found: list[Obstacle]) -> list[str]:
    return [obstacle.problem for obstacle in found if obstacle.driver == driver]


def test_machine_without_controllers_gives_an_empty_list(tmp_path: Path) -> None:
    assert controllers(Machine(tmp_path / "bare").root) == []
    assert controllers(tmp_path / "not even /sys") == []


def test_controller_of_the_kernel_driver_is_described(machine: Machine) -> None:
    machine.namespace(ADDRESS, nsid=1, nbytes=8 * MIB, lba=4096)
    machine.namespace(ADDRESS, nsid=2, nbytes=4 * MIB, shared=True)
    found = only(machine)
    assert (found.name, found.address, found.transport, found.driver) == ("nvme0", ADDRESS, "pcie", "nvme")
    assert (found.model, found.serial, found.firmware) == ("Samsung SSD 970 EVO Plus 1TB", "S4EV1234", "2B2QEXM7")
    assert (found.iommu_group, found.group_mates) == ("5", ())
    first, second = found.namespaces
    assert (first.name, first.nsid, first.nbytes, first.lba_bytes) == ("nvme0n1", 1, 8 * MIB, 4096)
    assert first.generic == str(machine.root / "dev/ng0n1")
    assert (second.name, second.nsid, second.lba_bytes) == ("nvme0n2", 2, 512)
    for namespace in found.namespaces:
        assert (namespace.users, namespace.partitions, namespace.locked) == ((), (), ())
        assert (namespace.holds, namespace.unread) == ("", "")
    assert obstacles(found, READY) == [
        Obstacle(driver, "the kernel's driver nvme has it: bind it to vfio-pci", commands)
        for driver, commands in {
            "vfio": (
                f"echo vfio-pci | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver_override",
                f"echo {ADDRESS} | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver/unbind",
                f"echo {ADDRESS} | sudo tee /sys/bus/pci/drivers_probe",
            ),
            "spdk": (
                "sudo modprobe vfio-pci",
                f"echo vfio-pci | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver_override",
                f"echo {ADDRESS} | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver/unbind",
                f"echo {ADDRESS} | sudo tee /sys/bus/pci/drivers_probe",
            ),
        }.items()
    ]


def test_namespace_contents_and_users_are_reported(machine: Machine) -> None:
    machine.namespace(ADDRESS, nsid=1, nbytes=8 * MIB)
    machine.contents("nvme0n1", 0, b"XFSB")
    machine.namespace(ADDRESS, nsid=2, nbytes=8 * MIB)
    machine.partition("nvme0n2", 1)
    machine.mount("nvme0n2p1", "/data")
    first, second = only(machine).namespaces
    assert first.holds == "an xfs filesystem (at byte 0)"
    assert second.users == ("nvme0n2p1 is mounted on /data",)
    assert second.partitions == ("nvme0n2p1",)
    found = obstacles(only(machine), READY)
    for driver in DRIVERS:
        assert of(driver, found)[:2] == [
            "/dev/nvme0n1 holds an xfs filesystem (at byte 0)",
            "in use: nvme0n2p1 is mounted on /data",
        ]
    (wipe,) = next(obstacle.commands for obstacle in found if "xfs" in obstacle.problem)
    assert wipe == "sudo wipefs --all /dev/nvme0n1  # or force=<its serial number>"


def test_missing_and_locked_devices_are_reported(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.namespace(ADDRESS, nsid=1, nbytes=8 * MIB)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    found = obstacles(only(machine), READY)
    assert of("uring", found) == ["this user may not open /dev/nvme0n1"]
    assert of("nvme", found) == [f"this user may not open {machine.root}/dev/ng0n1"]
    monkeypatch.undo()
    (machine.root / "dev/ng0n1").unlink()
    assert of("nvme", obstacles(only(machine), READY)) == ["nvme0n1 has no passthrough device (/dev/ng...) here"]
    (machine.root / "dev/nvme0n1").unlink()
    assert of("uring", obstacles(only(machine), READY)) == [
        "what /dev/nvme0n1 holds cannot be read: No such file or directory"
    ]


def test_controller_of_vfio_is_described(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.pci(ADDRESS, driver="vfio-pci", group=5)
    machine.pci("0000:03:00.1", kind="0x0c0330", driver="xhci_hcd", group=5)
    machine.pci("0000:00:1c.0", kind="0x060400", driver="pcieport", group=5)
    found = only(machine)
    assert (found.name, found.driver, found.model, found.serial) == (ADDRESS, "vfio-pci", "144d:a808", "")
    assert [(mate.address, mate.driver) for mate in found.group_mates] == [("0000:03:00.1", "xhci_hcd")]
    listed = obstacles(found, READY)
    assert of("vfio", listed) == ["VFIO assigns IOMMU group 5 as a whole, and xhci_hcd has 0000:03:00.1"]
    assert of("spdk", listed) == []
    assert of("uring", listed) == of("nvme", listed) == ["vfio-pci has it, not the kernel's nvme"]
    assert next(o for o in listed if o.driver == "nvme").commands == (
        f"echo nvme | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver_override",
        f"echo {ADDRESS} | sudo tee /sys/bus/pci/devices/{ADDRESS}/driver/unbind",
        f"echo {ADDRESS} | sudo tee /sys/bus/pci/drivers_probe",
    )


def test_controller_without_a_driver_is_described(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.pci(ADDRESS, driver="", group=5)
    listed = obstacles(only(machine), READY)
    assert of("vfio", listed) == ["no driver has it: bind it to vfio-pci"]
    assert not any("unbind" in command for obstacle in listed for command in obstacle.commands)


def test_controller_over_tcp_is_described(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.fabrics(1, "S9", "traddr=10.0.0.1,trsvcid=4420")
    found = only(machine)
    assert (found.name, found.address, found.transport) == ("nvme1", "traddr=10.0.0.1,trsvcid=4420", "tcp")
    listed = obstacles(found, replace(READY, huge_pages_free=0))
    assert of("vfio", listed) == ["VFIO needs a device on PCIe, and this one is reached over tcp"]
    assert of("spdk", listed) == []
    assert of("nvme", listed) == ["it has no namespace that the kernel can use"]


@pytest.mark.parametrize(
    ("change", "driver", "problem"),
    [
        ({"kernel": (5, 15)}, "nvme", "Linux 5.15 has no io_uring passthrough for NVMe: it came with 5.19"),
        ({"kernel": (6, 1)}, "nvme", "before Linux 6.2 only root"),
        ({"io_uring_disabled": True}, "uring", "io_uring is forbidden here"),
        ({"io_uring_disabled": True}, "nvme", "io_uring is forbidden here"),
        ({"vfio_modules": ("vfio",)}, "vfio", "not loaded: vfio_pci, vfio_iommu_type1"),
        ({"memlock": 8 * MIB}, "vfio", "only 8192 KiB may be locked"),
        ({"huge_pages_free": 3}, "spdk", "3 huge pages of 2 MiB are free: SPDK needs 128"),
        ({"no_spdk": "this build has no SPDK"}, "spdk", "this build has no SPDK"),
    ],
)
def test_missing_features_of_the_machine_are_obstacles(
    machine: Machine, change: dict[str, object], driver: str, problem: str
) -> None:
    machine.namespace(ADDRESS, nsid=1, nbytes=8 * MIB)
    found = only(machine)
    before, after = (of(driver, obstacles(found, state)) for state in (READY, replace(READY, **change)))
    (new,) = [one for one in after if one not in before]
    assert new.startswith(problem)


@pytest.mark.parametrize(
    ("change", "problem", "command"),
    [
        ({}, "the kernel's IOMMU does not cover", ""),
        ({"iommu_groups": 0}, "the IOMMU is there, but off", "intel_iommu=on"),
        ({"iommu_groups": 0, "processor": "AuthenticAMD"}, "the IOMMU is there, but off", "amd_iommu=on"),
        ({"iommu_groups": 0, "iommu_units": ()}, "no IOMMU was found: switch it on in the firmware", "update-grub"),
    ],
)
def test_missing_iommu_group_is_an_obstacle(
    tmp_path: Path, change: dict[str, object], problem: str, command: str
) -> None:
    machine = Machine(tmp_path)
    machine.pci(ADDRESS, driver="vfio-pci")
    for driver in ("vfio", "spdk"):
        listed = [o for o in obstacles(only(machine), replace(READY, **change)) if o.driver == driver]
        assert listed[0].problem.startswith(problem)
        assert command in " ".join(listed[0].commands)


def test_facts_are_read_from_the_machine(machine: Machine) -> None:
    told = facts(machine.root)
    assert (told.kernel, told.processor, told.iommu_units, told.kernel_line) == ((6, 8), "GenuineIntel", (), ())
    assert (told.iommu_groups, told.huge_pages_free, told.vfio_modules, told.unsafe_no_iommu) == (1, 0, (), False)
    assert told.iommu == "on, 1 groups (virtual)"
    machine.write("proc/cmdline", "ro intel_iommu=on iommu=pt vfio_iommu_type1.allow_unsafe_interrupts=1 quiet")
    machine.write("sys/class/iommu/dmar0/x", "")
    machine.write("sys/module/vfio/parameters/enable_unsafe_noiommu_mode", "Y\n")
    machine.write("sys/module/vfio_pci/x", "")
    machine.write("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "77\n")
    machine.write("proc/sys/kernel/io_uring_disabled", "2\n")
    told = facts(machine.root)
    assert told.kernel_line == ("intel_iommu=on", "iommu=pt", "vfio_iommu_type1.allow_unsafe_interrupts=1")
    assert (told.iommu_units, told.vfio_modules) == (("dmar0",), ("vfio", "vfio_pci"))
    assert (told.unsafe_no_iommu, told.huge_pages_free, told.io_uring_disabled) == (True, 77, True)


def test_recorded_machine_is_described(tmp_path: Path) -> None:
    """Recorded in the guest of tests/rig, with its second controller bound to vfio-pci."""
    recorded(tmp_path, Path(__file__).parents[1] / "data" / "nvme-guest.txt")
    first, second = controllers(tmp_path)
    assert (first.name, first.address, first.driver, first.iommu_group) == ("nvme0", "0000:00:03.0", "nvme", "1")
    assert (first.model, first.serial, first.firmware) == ("QEMU NVMe Ctrl", "rig512", "7.2.22")
    (namespace,) = first.namespaces
    assert (namespace.name, namespace.nsid, namespace.nbytes, namespace.lba_bytes) == ("nvme0n1", 1, 64 * MIB, 512)
    assert namespace.generic == str(tmp_path / "dev/ng0n1")
    assert (second.name, second.driver, second.model) == ("0000:00:04.0", "vfio-pci", "1b36:0010")
    assert (second.iommu_group, second.group_mates, second.namespaces) == ("2", (), ())
    state = replace(facts(tmp_path), memlock=-1, root=True)
    assert (state.kernel, state.iommu_groups, state.iommu_units) == ((6, 1), 5, ("dmar0",))
    assert state.iommu == "on, 5 groups (dmar0); kernel line: intel_iommu=on"
    assert state.vfio_modules == ("vfio", "vfio_pci", "vfio_iommu_type1")
    assert of("uring", obstacles(first, state)) == of("nvme", obstacles(first, state)) == []
    assert of("vfio", obstacles(first, state)) == ["the kernel's driver nvme has it: bind it to vfio-pci"]
    assert of("vfio", obstacles(second, state)) == []


def test_this_machine_is_described_without_an_error() -> None:
    """Works on any machine and for any user."""
    state = facts()
    assert state.kernel > (2, 6)
    for found in controllers():
        assert all(obstacle.driver in DRIVERS and obstacle.problem for obstacle in obstacles(found, state))
