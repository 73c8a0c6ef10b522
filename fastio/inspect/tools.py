"""The tools of this machine, and why some are unavailable."""

from __future__ import annotations

from dataclasses import dataclass

from fastio.formats.detect import FORMATS
from fastio.transports import registry


@dataclass(frozen=True, slots=True)
class ToolStatus:
    """One tool: whether it is available, else the reason and the cure.

    ``operations`` are ``save`` and ``load``; ``formats`` those that it fills; ``devices`` the kinds of memory that it
    moves. ``files``: whether it moves files; else it moves objects of volumes on NVMe namespaces alone.
    """

    name: str
    available: bool
    reason: str
    cure: str
    operations: tuple[str, ...]
    formats: tuple[str, ...]
    devices: tuple[str, ...]
    files: bool


def tools() -> list[ToolStatus]:
    """Every tool, built in or plugged in. Imports the libraries behind them, so it can take a second."""
    found = []
    for name in registry.names():
        tool = registry.find(name)
        if tool.transport is None:
            found.append(ToolStatus(name, False, tool.reason, tool.cure, (), (), (), False))
            continue
        can = tool.transport.capabilities
        formats = tuple(form for form in FORMATS if can.formats is None or form in can.formats)
        devices = tuple(sorted(filter(registry.is_here, can.devices)))
        operations = tuple(sorted(can.operations))
        found.append(ToolStatus(name, True, "", "", operations, formats, devices, not can.namespaces))
    return found
