"""CRC-32 of extents, for transports that do not compute it while they move the bytes.

A device computes those of its own memory, so that the host touches no tensor bytes that bypassed it. Where it cannot,
the bytes are copied to the host, and a note says so.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence

import torch

from fastio import config, devices
from fastio._native import crc32, memory_checksums
from fastio.engine.host_pieces import host_pieces
from fastio.errors import ToolUnavailableError
from fastio.formats.layout import Layout, Part, address_of
from fastio.transports.transport import Extent


def of_extents(extents: Sequence[Extent]) -> tuple[list[int], tuple[str, ...]]:
    """A CRC-32 for each extent, 0 where none is asked for, and why bytes were copied to the host for them.

    All work on their memory must have ended.
    """
    values, notes = [0] * len(extents), []
    groups: dict[torch.device | None, list[int]] = {}  # indices; None: host memory
    for index, extent in enumerate(extents):
        if extent.checksum:
            groups.setdefault(None if extent.device == "cpu" else extent.owner.device, []).append(index)
    for device, indices in groups.items():
        own = [extents[index] for index in indices]
        try:
            computed = memory_checksums(own, config.get("io_threads")) if device is None else _on_device(own, device)
        except ToolUnavailableError as error:
            nbytes = sum(extent.nbytes for extent in own)
            why = f"{error.reason}; {error.cure}" if error.cure else error.reason
            notes.append(f"{nbytes} bytes on {device} were copied to the host for their checksums: {why}")
            computed = [of_part(extent) for extent in own]
        for index, value in zip(indices, computed, strict=True):
            values[index] = value
    return values, tuple(notes)


def of_part(part: Part) -> int:
    """The CRC-32 of a part of a layout, computed by the host from memory on any device."""
    value = 0
    for piece in host_pieces(part):
        value = crc32(piece, value)
    return value


def _on_device(extents: Sequence[Extent], device: torch.device) -> list[int]:
    accelerator = devices.find(device)
    if accelerator is None:
        raise ToolUnavailableError("crc32", f"fastio cannot use {device.type} devices")
    try:
        return accelerator.crc32_of_ranges([(extent.address, extent.nbytes) for extent in extents], device)
    except torch.OutOfMemoryError as error:
        raise ToolUnavailableError("crc32", "the device has no memory left for the kernel's results") from error


def seal(layout: Layout) -> tuple[list[int], tuple[str, ...]]:
    """Compute the CRCs of a layout's storages as :func:`of_extents` does, and write them into its zip headers."""
    values, notes = of_extents(layout.extents)
    patch(layout, values)
    return values, notes


def with_known(layout: Layout, known: Mapping[int, int]) -> Layout:
    """Write CRCs, by the indices of their extents, into the zip headers of a layout; return it without asking for them.

    The layout returned shares its literal bytes.
    """
    if not known:
        return layout
    values = [known.get(index, 0) for index in range(len(layout.extents))]
    patch(layout._replace(patches=[one for one in layout.patches if one.extent in known]), values)
    extents = [one._replace(checksum=one.checksum and n not in known) for n, one in enumerate(layout.extents)]
    return layout._replace(extents=extents, patches=[one for one in layout.patches if one.extent not in known])


def patch(layout: Layout, values: Sequence[int]) -> None:
    """Write CRCs, one for each extent, into the zip headers of a layout."""
    offsets = [extent.offset for extent in layout.extents]
    base = address_of(layout.literal)
    for offset, index in layout.patches:
        literal = layout.extents[bisect.bisect_right(offsets, offset) - 1]
        at = literal.address - base + (offset - literal.offset)
        layout.literal[at : at + 4] = values[index].to_bytes(4, "little")
