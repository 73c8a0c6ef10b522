"""The NVMe part of ``fastio-bench doctor``: controllers, their drivers, and the obstacles to each driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastio.nvme import DRIVERS, Controller, Namespace, Obstacle, controllers, gpu_memory, obstacles
from fastio.nvme.facts import Facts, facts
from fastio_bench.report.table import Cell, ResultTable

NONE = "NVMe: no controller here, so the block store's drivers nvme, vfio and spdk (on PCIe) have nothing to drive"


@dataclass(frozen=True)
class Found:
    """The controllers, each with the obstacles to its drivers."""

    facts: Facts
    controllers: Sequence[tuple[Controller, Sequence[Obstacle]]]

    def document(self) -> list[dict[str, Any]]:
        """For JSON: a dict for each controller, with ``obstacles`` by driver (an empty list: the driver can use it)."""
        return [
            {**asdict(controller), "obstacles": {driver: _of(driver, told) for driver in DRIVERS}}
            for controller, told in self.controllers
        ]


def find() -> Found:
    """Find the controllers of this machine."""
    told = facts()
    return Found(told, [(controller, obstacles(controller, told)) for controller in controllers()])


def answers(told: Facts) -> list[tuple[str, str]]:
    """The facts that concern all controllers."""
    return [
        ("IOMMU", told.iommu),
        ("VFIO", f"loaded: {', '.join(told.vfio_modules)}" if told.vfio_modules else "not loaded"),
        ("GPU memory for NVMe", str(gpu_memory.offer())),
    ]


def tables(found: Found) -> list[ResultTable]:
    """The tables of controllers and obstacles; none without a controller."""
    if not found.controllers:
        return []
    columns = ("controller", "at", "model, serial number, firmware", "driver", "IOMMU group", "namespaces")
    rows: list[list[Cell]] = [
        [
            controller.name,
            controller.address,
            ", ".join(filter(None, (controller.model, controller.serial, controller.firmware))),
            controller.driver or "none",
            _group(controller),
            "; ".join(map(_namespace, controller.namespaces)) or "none to be seen",
        ]
        for controller, _ in found.controllers
    ]
    ways: list[list[Cell]] = []
    for controller, told in found.controllers:
        for driver in DRIVERS:
            mine = [obstacle for obstacle in told if obstacle.driver == driver]
            if not mine:
                ways.append([controller.name, driver, "ready", ""])
            ways += [[controller.name, driver, one.problem, "\n".join(one.commands)] for one in mine]
    note = "commands change the machine: read them first; what is on a namespace that a driver takes over is lost"
    return [
        ResultTable("nvme", "NVMe controllers", columns, rows),
        ResultTable(
            "nvme-drivers", "The block store's drivers", ("controller", "driver", "", "commands"), ways, note=note
        ),
    ]


def _of(driver: str, told: Sequence[Obstacle]) -> list[dict[str, Any]]:
    return [
        {"problem": obstacle.problem, "commands": list(obstacle.commands)}
        for obstacle in told
        if obstacle.driver == driver
    ]


def _group(controller: Controller) -> str:
    if not controller.iommu_group:
        return "none"
    mates = ", ".join(f"{mate.address} ({mate.driver or 'no driver'})" for mate in controller.group_mates)
    return f"{controller.iommu_group}, with {mates}" if mates else controller.iommu_group


def _namespace(namespace: Namespace) -> str:
    said = f"{namespace.name}: {namespace.nbytes / 1e9:,.1f} GB, LBA {namespace.lba_bytes}"
    partitions = f"partitions {', '.join(namespace.partitions)}" if namespace.partitions else ""
    unread = f"unread: {namespace.unread}" if namespace.unread else ""
    use = "; ".join([*namespace.users, *filter(None, (partitions, namespace.holds, unread))]) or "unused"
    return f"{said}, {use}"
