"""Which tools can do a transfer, by what they declare."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from fastio.transports import registry
from fastio.transports.transport import Capabilities

_PT = "pt"  # a tool that moves extents of this format moves those of all

Need = Literal["object", "own", "extents", "rows"]
"""What is asked of a tool.

``object``: to save or load an object in any way, a library's own included. ``own``: not a library's own, which compares
no checksums and reads all of a file. ``extents``: also to compute checksums, of host memory on the way. ``rows``: also
that tens of thousands of extents cost it next to nothing.
"""


def able(kind: str, file_format: str, devices: frozenset[str], need: Need) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The tools that a dictionary may choose from, and which others are unavailable, and why."""
    return _able(kind, file_format, devices, need, registry.imported())


@lru_cache(maxsize=256)
def _able(
    kind: str, file_format: str, devices: frozenset[str], need: Need, imported: tuple[bool, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    tools = registry.at_hand(devices, kind, file_format)
    can = {tool.name: tool.transport.capabilities for tool in tools if tool.transport is not None}
    missing = tuple(f"{tool.name}: {tool.reason}" for tool in tools if tool.transport is None)
    names = candidates(can, kind, file_format, devices)
    return tuple(name for name in names if _meets(can[name], kind, file_format, devices, need)), missing


def candidates(
    tools: Mapping[str, Capabilities], operation: str, file_format: str, devices: frozenset[str]
) -> tuple[str, ...]:
    """The tools that a dictionary may choose from, those that take least CPU by what they declare first.

    Which is: no copy through the page cache, then no pass of its own over the bytes for checksums, last a library's own
    save and load. A dictionary uses the first of those that are equal in time.
    """
    passes = {
        name: (not can.direct, not can.checksums, bool(can.whole))
        for name, can in tools.items()
        if can.automatic and can.can(operation, file_format, devices)
    }
    return tuple(sorted(passes, key=passes.__getitem__))


def _meets(can: Capabilities, kind: str, file_format: str, devices: frozenset[str], need: Need) -> bool:
    if need == "object":
        return True
    if need == "own":
        return file_format not in can.whole
    moves_extents = can.can(kind, _PT, devices) and _PT not in can.whole
    return moves_extents and (can.checksums or not devices <= {"cpu"}) and (need == "extents" or can.rows)
