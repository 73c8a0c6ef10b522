"""The drivers of NVMe namespaces in ``fastio-bench io``: contestants on volumes, and the table of all drivers.

Without a volume on a namespace a driver has no speed. Its row then says why, and what the hardware of an emulated
machine counted (``make test-nvme ONLY=counts``): commands and bytes do not depend on how fast a machine is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import fastio
from fastio._native import why_no_spdk
from fastio.nvme import Controller, Obstacle
from fastio.volumes import Volume
from fastio.volumes.opening import tools_of
from fastio_bench.harness.rounds import Contestant, Measured
from fastio_bench.harness.timing import timed
from fastio_bench.peers.catalogue import way
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

DRIVERS = ("nvme", "vfio", "spdk")
_SAVED, _LOADED = "fastio-bench/saved.pt", "fastio-bench/loaded.pt"
_TITLE = "Drivers of NVMe namespaces: counts per MiB in an emulated machine, no speeds"
_NOTE = (
    "counted by QEMU's NVMe controller and IOMMU (make test-nvme ONLY=counts), of 4 MiB written and read by Offload's "
    "store, at most 128 KiB a command; speeds of a volume on a real namespace: --volume"
)


class Counts(NamedTuple):
    """What the emulated hardware and the driver counted for each MiB moved; bytes in MiB."""

    commands: float
    doorbells: float
    system_calls: float
    host_memory: float
    copied: float
    device_memory: float


# From a run of the emulated machine; `device` is memory of another PCI device, through a peer window.
EMULATED = {
    ("nvme", "host"): Counts(8.00, 0.50, 0.62, 1.00, 0.00, 0.00),
    ("vfio", "host"): Counts(8.00, 0.25, 0.00, 1.00, 0.00, 0.00),
    ("vfio", "device"): Counts(8.00, 0.25, 0.00, 0.00, 0.00, 1.00),
}


def table(volumes: Sequence[str], found: Sequence[tuple[Controller, Sequence[Obstacle]]]) -> ResultTable:
    """A row for each driver and kind of memory: its counts, and where its speeds are, or why there are none."""
    rows: list[list[Cell]] = []
    for driver in DRIVERS:
        speeds = _speeds(driver, volumes, found)
        for memory in ("host", "device") if driver != "nvme" else ("host",):
            counts: Sequence[float | None] = EMULATED.get((driver, memory), (None,) * len(Counts._fields))
            rows.append([driver, memory, *counts, speeds])
    bytes_in = [f"{what} MiB*" for what in ("DMA in host memory,", "copied by the CPU,", "DMA in device memory,")]
    columns = ["driver", "memory", "commands*", "doorbells*", "system calls*", *bytes_in, "speeds"]
    return ResultTable("io-namespaces", _TITLE, columns, rows, origin=SIMULATED, note=_NOTE)


def _speeds(driver: str, volumes: Sequence[str], found: Sequence[tuple[Controller, Sequence[Obstacle]]]) -> str:
    own = [volume for volume in volumes if driver in tools_of(volume)]
    if own:
        return f"in the tables of speeds: {', '.join(own)}"
    if driver == "spdk" and (missing := why_no_spdk()):
        return missing.partition(": ")[0]
    if not found:
        return "there is no NVMe controller here"
    told = [f"{controller.name}: {one.problem}" for controller, all_ in found for one in all_ if one.driver == driver]
    return "; ".join(told) or f"no volume was named, as in --volume {driver}:..."


def saver(volume: str, thing: Any, device: str) -> Contestant:
    """Save an object into a volume, which removes it afterwards. Each save is durable."""

    def save() -> str:
        return way(fastio.save(thing, f"{volume}/{_SAVED}"))

    return Contestant(volume, _timed(save, device), finish=lambda: remove(volume, _SAVED))


def loader(volume: str, thing: Any, device: str) -> Contestant:
    """Load an object of a volume, which no page cache holds, in this process."""
    path = f"{volume}/{_LOADED}"
    fastio.save(thing, path)

    def load() -> str:
        with fastio.record() as transfers:
            fastio.load(path, device)
        return way(transfers[-1])

    return Contestant(volume, _timed(load, device))


def clear(volumes: Sequence[str]) -> None:
    """Remove what contestants left in the volumes."""
    for volume in volumes:
        remove(volume, _LOADED)
        remove(volume, _SAVED)


def remove(volume: str, name: str) -> None:
    """Remove an object, if it is there. What prevents it, the measurement has told."""
    with contextlib.suppress(OSError, fastio.FastIOError), Volume.open(volume, write=True) as writer:
        writer.rm(name)


def _timed(call: Any, device: str) -> Any:
    def run() -> Measured | str:
        return call() if device == "cpu" else timed(lambda: (None, call()), device)[1]

    return run
