"""Divides an object of a volume into the steps in which it is moved, each through memory of the host or of a device.

Pure. Offsets are the object's, in bytes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from fastio.transports.transport import Extent
from fastio.volumes.device import BLOCK

STEP = 4 << 20  # bytes that are moved at once, at most
_JOINED = 64 << 10  # bytes of host memory, or of gaps, that cost less in the step beside them than in one of their own


class Step(NamedTuple):
    """The blocks ``[begin, end)``, which are moved through memory of ``device``; None: of the host."""

    begin: int
    end: int
    device: torch.device | None


def steps(extents: Sequence[Extent], devices: Sequence[torch.device | None], size: int | None = None) -> Iterator[Step]:
    """The steps that cover all blocks with bytes of the sorted extents; with a ``size``, all blocks of the object.

    ``devices`` are those of the extents' memory, None for the host's. A block that has bytes of a device goes through
    that device, whatever else is in it. So do a few bytes of the host beside it.
    """
    runs: list[Step] = []
    for extent, device in zip(extents, devices, strict=True):
        if extent.nbytes:
            _add(runs, Step(_down(extent.offset), _up(extent.offset + extent.nbytes), device))
    if size is not None:
        runs = runs or [Step(0, 0, None)]
        begins = [0, *(run.begin for run in runs[1:]), _up(size)]
        runs = [Step(begin, end, run.device) for begin, end, run in zip(begins, begins[1:], runs, strict=False)]
    for run in runs:
        for begin in range(run.begin, run.end, STEP):
            yield run._replace(begin=begin, end=min(begin + STEP, run.end))


def _add(runs: list[Step], new: Step) -> None:
    """Append blocks to those before, or join them with the last."""
    if not runs:
        runs.append(new)
        return
    last = runs[-1]
    is_near, is_small = new.begin <= last.end + _JOINED, new.end - new.begin <= _JOINED
    if is_near and (new.device == last.device or (new.device is None and is_small)):
        runs[-1] = last._replace(end=max(last.end, new.end))
    elif is_near and last.device is None and last.end - last.begin <= _JOINED:
        runs.pop()
        _add(runs, new._replace(begin=min(last.begin, new.begin)))
    elif new.begin >= last.end:
        runs.append(new)
    elif last.device is None:  # they share a block
        runs[-1] = last._replace(end=new.begin)
        runs.append(new)
    elif new.end > last.end:
        runs.append(new._replace(begin=last.end))


def parts(extents: Sequence[Extent], step: Step) -> Iterator[tuple[int, int, int]]:
    """The index of each extent that has bytes in a step, and which: from, and to."""
    first = bisect_right(extents, step.begin, key=lambda extent: extent.offset + extent.nbytes)
    for index in range(first, bisect_left(extents, step.end, key=lambda extent: extent.offset)):
        extent = extents[index]
        low, high = max(step.begin, extent.offset), min(step.end, extent.offset + extent.nbytes)
        if low < high:
            yield index, low, high


def _down(offset: int) -> int:
    return offset // BLOCK * BLOCK


def _up(offset: int) -> int:
    return -(-offset // BLOCK) * BLOCK
