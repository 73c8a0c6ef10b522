"""Counts the cost of moving a MiB in the emulated controller and IOMMU: commands, doorbells, and accessed memory."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

EVENTS = (
    "pci_nvme_io_cmd",
    "pci_nvme_mmio_doorbell_sq",
    "pci_nvme_mmio_doorbell_cq",
    "pci_nvme_map_addr",
    "vtd_iotlb_page_hit",
    "vtd_iotlb_page_update",
)

_PAGE = 4096
_LARGE_PAGE = 1 << 21
_MAPPED = re.compile(r"pci_nvme_map_addr addr 0x([0-9a-f]+) len (\d+)")
_TRANSLATED = re.compile(r"vtd_iotlb_page_(?:hit|update) .* iova 0x([0-9a-f]+) slpte 0x([0-9a-f]+)")


@dataclass(frozen=True)
class Counts:
    """Counts of one test that moved ``mib`` MiB, by the emulated hardware and by the test itself."""

    label: str
    mib: int
    commands: int
    doorbells: int
    host_nbytes: int  # payload that the controller read from or wrote to the machine's memory
    peer_nbytes: int  # the same for the peer device's BAR
    reported: dict[str, int]  # commands, doorbells, system_calls, copied: the driver's counters

    def wrong(self) -> list[str]:
        """Return the disagreements between both counts."""
        found: list[str] = []
        moved = self.host_nbytes + self.peer_nbytes
        ahead = self.label == "pread-cached"  # the page cache reads ahead
        if moved < self.mib << 20 or (moved > self.mib << 20 and not ahead):
            found.append(f"{moved} bytes of payload, expected {self.mib} MiB")
        if self.label.startswith("vfio") and self.reported["doorbells"] != self.doorbells:
            found.append(f"the driver counts {self.reported['doorbells']} doorbells, the controller {self.doorbells}")
        if self.label.startswith(("vfio", "nvme")) and self.reported["commands"] != self.commands:
            found.append(f"the driver counts {self.reported['commands']} commands, the controller {self.commands}")
        if "peer" in self.label and (self.host_nbytes or self.reported["copied"]):
            found.append(f"{self.host_nbytes + self.reported['copied']} bytes of payload in host memory, expected none")
        return found


def count(label: str, trace: str, bar: range, reported: dict[str, int]) -> Counts:
    """Return the counts in QEMU's trace of a test. ``bar``: the guest physical addresses of the peer's memory."""
    pages: dict[int, int] = {}
    payload: list[tuple[int, int]] = []
    commands = doorbells = 0
    for line in trace.splitlines():
        if "pci_nvme_io_cmd" in line:
            commands += 1
        elif "pci_nvme_mmio_doorbell" in line:
            doorbells += 1
        elif mapped := _MAPPED.search(line):
            payload.append((int(mapped[1], 16), int(mapped[2])))
        elif translated := _TRANSLATED.search(line):
            address, entry = int(translated[1], 16), int(translated[2], 16)
            size = _LARGE_PAGE if entry & 0x80 else _PAGE  # bit 7: the entry maps a large page
            pages[address // _PAGE] = (entry & ~(size - 1) & (1 << 52) - 1) | address & (size - 1)
    in_bar = sum(nbytes for address, nbytes in payload if pages[address // _PAGE] in bar)
    total = sum(nbytes for _, nbytes in payload)
    return Counts(label, reported.pop("mib"), commands, doorbells, total - in_bar, in_bar, reported)


def table(rows: list[Counts]) -> list[str]:
    """Return the counts per MiB moved, half written and half read. There are no times, because all is emulated."""
    heads = (
        "per MiB moved",
        "commands",
        "doorbells",
        "system calls",
        "DMA in host memory",
        "copied by the CPU",
        "DMA in the peer",
    )
    cells: list[tuple[str, ...]] = [heads]
    for row in rows:
        values = (row.commands, row.doorbells, row.reported["system_calls"])
        memory = (row.host_nbytes, row.reported["copied"], row.peer_nbytes)
        shares = [f"{nbytes / (row.mib << 20):.2f} MiB" for nbytes in memory]
        cells.append((row.label, *(f"{value / row.mib:.2f}" for value in values), *shares))
    widths = [max(len(row[column]) for row in cells) for column in range(len(heads))]
    return ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def read(path: Path, begin: int) -> str:
    """Return the part of the trace from ``begin`` on."""
    with path.open(encoding="utf-8") as trace:
        trace.seek(begin)
        return trace.read()
