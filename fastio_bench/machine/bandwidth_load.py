"""A load process: copies memory at a set pace. ``fastio_bench.machine.bandwidth_loads`` starts it.

It needs only the standard library, so it starts in milliseconds and takes little memory.
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
TRAFFIC = 2 * CHUNK  # bytes moved by one copy: read and written, as STREAM counts
BINS, BINS_AN_OCTAVE, SHORTEST = 400, 16, 1e-6  # of the histogram of a chunk's seconds: 4 % wide, from 1 us to 30 s
_SLACK = 0.05  # seconds of delay that a load process catches up; it does not catch up more
_IDLE = 0.005  # seconds between two polls of the target while it is 0
_PR_SET_PDEATHSIG = 1


class Slot(ctypes.Structure):
    """Shared memory of a load process and its parent. The parent writes the first two fields, the other the rest.

    ``target``: bytes/s, 0 to pause, infinity to run as fast as possible. ``begun``: how many measurements the parent
    has begun; delay from before a measurement is not caught up in it. ``moved``: bytes so far. ``took``: a histogram of
    the seconds of a chunk.
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
    """Computes the pauses that keep a rate of ``bytes_per_s``. Pure: the caller has the clock.

    Later pauses make up for a chunk or a sleep that took too long, up to ``_SLACK`` seconds. Without that limit, a
    process that got too little bandwidth would take more than its share later.
    """

    def __init__(self, bytes_per_s: float, now: float) -> None:
        self.bytes_per_s, self._due = bytes_per_s, now

    def pause(self, moved: int, now: float) -> float:
        """The seconds to sleep after ``moved`` more bytes."""
        self._due = max(self._due + moved / self.bytes_per_s, now - _SLACK)
        return max(0.0, self._due - now)

    def forgive(self, now: float) -> None:
        """Forget the delay so far."""
        self._due = max(self._due, now)


def bin_of(seconds: float) -> int:
    """The histogram's bin for a chunk of ``seconds``."""
    if seconds <= SHORTEST:
        return 0
    return min(BINS - 1, int(BINS_AN_OCTAVE * math.log2(seconds / SHORTEST)))


def main(text: str) -> None:
    """Copy until killed.

    ``text`` is JSON: the shared file's ``fd``, this process's ``index`` in it, its ``core``, the ``nbytes`` of each of
    its two buffers, and the ``parent`` process: when that ends, this one is killed.
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
    """Allocate ``nbytes`` of populated memory, never freed. Returns its address."""
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    _HELD.append(memory)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, nbytes)
    return address


_HELD: list[mmap.mmap] = []


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when the parent ends."""
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # the parent ended before the call
        sys.exit("the parent process is gone")


if __name__ == "__main__":
    main(sys.argv[1])
