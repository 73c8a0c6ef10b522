"""A program that copies memory at a set pace, started by ``fastio_bench.machine.bandwidth_loads``.

It needs nothing but the standard library, so that it starts in milliseconds and leaves the memory to what is measured.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import signal
import sys
import time

CHUNK = 4 << 20  # bytes copied at a time
TRAFFIC = 2 * CHUNK  # bytes that this moves: read and written, as STREAM counts its copy
BINS, BINS_AN_OCTAVE, SHORTEST = 400, 16, 1e-6  # of the histogram of a chunk's seconds: 4 % wide, from 1 us to 30 s
_SLACK = 0.05  # seconds of delay that a hog makes good; what it loses beyond is lost
_IDLE = 0.005  # seconds between two looks at a target of nothing
_PR_SET_PDEATHSIG = 1


class Slot(ctypes.Structure):
    """What a hog and its parent share. Each field has one writer: the parent of the first two, the hog of the others.

    ``target``: bytes/s, 0 for a hog at rest, infinity for one that goes as fast as it can. ``begun``: how often the
    parent has begun to measure; what was lost before is not made good after. ``moved``: bytes so far. ``took``: how
    many chunks took as long as each bin says.
    """

    _fields_ = (
        ("target", ctypes.c_double),
        ("begun", ctypes.c_int64),
        ("moved", ctypes.c_int64),
        ("ready", ctypes.c_int64),
        ("took", ctypes.c_int64 * BINS),
    )
    target: float
    begun: int
    moved: int
    ready: int
    took: ctypes.Array[ctypes.c_int64]


class Throttle:
    """When to pause so that bytes go at ``bytes_per_s``; pure, its caller has the clock.

    It goes by the bytes that were moved: what one chunk or one sleep takes too long, the next pauses make good, up to
    ``_SLACK`` seconds. Without that bound, a hog that was kept from its bandwidth would take more than its share later.
    """

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s, self._due = bytes_per_s, now

    def pause(self, moved: int, now: float) -> float:
        """Seconds to sleep, after so many bytes more were moved."""
        self._due = max(self._due + moved / self.bytes_per_s, now - _SLACK)
        return max(0.0, self._due - now)

    def forgive(self, now: float) -> None:
        """Make nothing good of what was lost until now."""
        self._due = max(self._due, now)


def bin_of(seconds: float) -> int:
    """The bin of the histogram for a chunk that took so long."""
    if seconds <= SHORTEST:
        return 0
    return min(BINS - 1, int(BINS_AN_OCTAVE * math.log2(seconds / SHORTEST)))


def main(text: str) -> None:
    """Copy until killed.

    ``text`` is JSON: the shared file's ``fd``, this hog's ``index`` in it, its ``core``, the ``nbytes`` of each of its
    two buffers, and the ``parent`` process with which it dies.
    """
    settings: dict[str, int] = json.loads(text)
    _die_with(settings["parent"])
    os.sched_setaffinity(0, {settings["core"]})
    shared = mmap.mmap(settings["fd"], 0)
    slot = Slot.from_buffer(shared, settings["index"] * ctypes.sizeof(Slot))
    nbytes = settings["nbytes"]
    source, target = _memory(nbytes), _memory(nbytes)
    slot.ready = 1
    _stream(slot, source, target, nbytes)


def _stream(slot: Slot, source: int, target: int, nbytes: int) -> None:
    throttle, offset, begun = Throttle(math.inf, time.perf_counter()), 0, 0
    while True:
        began, asked = time.perf_counter(), slot.target
        if asked <= 0:
            time.sleep(_IDLE)
            continue
        if asked != throttle.bytes_per_s:
            throttle = Throttle(asked, began)
        if slot.begun != begun:
            begun = slot.begun
            throttle.forgive(time.perf_counter())
        ctypes.memmove(target + offset, source + offset, CHUNK)
        offset = (offset + CHUNK) % nbytes
        now = time.perf_counter()
        slot.moved += TRAFFIC
        slot.took[bin_of(now - began)] += 1
        pause = throttle.pause(TRAFFIC, now)
        if pause > 0:
            time.sleep(pause)


def _memory(nbytes: int) -> int:
    """The address of so much memory of its own, every page of it there; never given back."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _HELD.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, nbytes)
    return address


_HELD: list[mmap.mmap] = []


def _die_with(parent: int) -> None:
    """Be killed when the parent ends, however it ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it ended before that
        sys.exit("the parent process is gone")


if __name__ == "__main__":
    main(sys.argv[1])
