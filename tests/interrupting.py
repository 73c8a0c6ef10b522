"""What is interrupted at random moments, as by Ctrl-C: to be used in a process of its own."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType


class Interrupts:
    """Interrupts calls once each, at most ``longest`` seconds after they began; ``came`` counts those that were."""

    def __init__(self, longest: float) -> None:
        self.came = 0
        self._longest = longest
        self._chance = random.Random(1)
        self._armed = False
        signal.signal(signal.SIGALRM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> bool:
        """Do the work; gives whether it was interrupted."""
        signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(1e-5, self._longest))
        try:
            self._armed = True
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
