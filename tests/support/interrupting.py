"""What is interrupted at random moments, as by Ctrl-C: to be used in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """Interrupts calls, at most ``longest`` seconds after they began; ``came`` counts those that were.

    Once each, or with ``again`` over and over, that many seconds apart at most, until the call is left.
    """

    def __init__(self, longest: float, again: float = 0.0) -> None:
        self.came = 0
        self._longest, self._again = longest, again
        self._chance = random.Random(1)
        self._armed = False
        signal.signal(signal.SIGALRM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # What comes in ``during`` itself is before the work, or after it.
        if self._armed and frame is not None and frame.f_code is not Interrupts.during.__code__:
            raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> bool:
        """Do the work; gives whether it was interrupted."""
        again = self._chance.uniform(2e-5, self._again) if self._again else 0.0
        try:
            self._armed = True
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-5, self._longest), again)
            work()
            self._armed = False
        except KeyboardInterrupt:
            self._armed = False
            self.came += 1
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


def descriptors() -> list[str]:
    """What is open."""
    with os.scandir("/proc/self/fd") as found:
        return sorted(os.readlink(entry.path) for entry in found)


def only_one_thread() -> bool:
    """Whether no other thread runs Python code, within a second: those that were interrupted as they began end soon.

    Python's own count leaves out those whose ``join`` was interrupted, up to 3.12.
    """
    end = time.monotonic() + 1
    while len(sys._current_frames()) > 1:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def moving() -> list[str]:
    """What threads other than this one do for a transfer, or for a snapshot."""
    found = []
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        while frame is not None and thread != threading.get_ident():
            if frame.f_code.co_filename.endswith(("/fastio/job.py", "/fastio/checkpoint/copying.py")):
                found.append(frame.f_code.co_name)
            frame = frame.f_back
    return found
