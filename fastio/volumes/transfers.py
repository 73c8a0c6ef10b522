"""Reads and writes parts of an object, which need not begin at a block, on the device that its runs lie on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastio.volumes.device import BLOCK, Device
from fastio.volumes.extents import Run

_STEP = 8 << 20


def pieces(runs: Sequence[Run], offset: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Where ``nbytes`` of an object from ``offset`` on lie on the device: (offset there, bytes)."""
    begin = 0
    for run in runs:
        length = run.blocks * BLOCK
        low, high = max(offset, begin), min(offset + nbytes, begin + length)
        if low < high:
            yield run.first * BLOCK + low - begin, high - low
        begin += length


def read_bytes(device: Device, runs: Sequence[Run], offset: int, nbytes: int) -> bytes:
    """``nbytes`` bytes of an object from ``offset`` on."""
    found = bytearray()
    for place, length in pieces(runs, offset, nbytes):
        begin, end = place // BLOCK * BLOCK, -(-(place + length) // BLOCK) * BLOCK
        whole = device.read(begin, end - begin)
        found += whole[place - begin : place - begin + length]
    return bytes(found)


def write_bytes(device: Device, runs: Sequence[Run], offset: int, data: bytes | memoryview) -> None:
    """Write bytes of an object from ``offset`` on. What else a block has stays."""
    rest = memoryview(data).cast("B")
    for place, length in pieces(runs, offset, len(rest)):
        done = 0
        while done < length:
            at = place + done
            count = min(length - done, _STEP - at % BLOCK)
            _write(device, at, rest[done : done + count])
            done += count
        rest = rest[length:]


def _write(device: Device, place: int, data: memoryview) -> None:
    begin, end = place // BLOCK * BLOCK, -(-(place + len(data)) // BLOCK) * BLOCK
    if (begin, end) == (place, place + len(data)):
        device.write(begin, data)
        return
    whole = bytearray(device.read(begin, BLOCK))
    if end - begin > BLOCK:
        whole += bytes(end - begin - 2 * BLOCK) + device.read(end - BLOCK, BLOCK)
    whole[place - begin : place - begin + len(data)] = data
    device.write(begin, memoryview(whole))
