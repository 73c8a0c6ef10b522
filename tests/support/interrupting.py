"""Interrupts calls at random moments, as Ctrl-C does. Use it in a process of its own."""

from __future__ import annotations

import dis
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Interrupts:
    """Interrupts calls, at most ``longest`` seconds after they begin; ``came`` counts the interrupted calls.

    Each call is interrupted once, or with ``again`` repeatedly, at most that many seconds apart, until it ends.
    """

    def __init__(self, longest: float, again: float = 0.0) -> None:
        self.came = 0
        self._longest, self._again = longest, again
        self._chance = random.Random(1)
        self._armed = False
        signal.signal(signal.SIGALRM, self._hear)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        # An interrupt in ``during`` itself is before or after the work.
        if self._armed and frame is not None and frame.f_code is not Interrupts.during.__code__:
            raise KeyboardInterrupt

    def during(self, work: Callable[[], object]) -> bool:
        """Do the work; returns whether it was interrupted."""
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


def interrupted_after(nth: int, work: Callable[[], object], where: str) -> str:
    """Do the work, and raise KeyboardInterrupt where Python may run a signal's handler for the nth time.

    That is after a call and at the beginning of a function, in files whose path has ``where`` in it. Returns the
    function and line; "" if the work ended before.
    """
    seen, count = "", 0
    calls: dict[CodeType, set[int]] = {}  # by code: the offsets of instructions that follow a call

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal seen, count
        if where not in frame.f_code.co_filename or seen:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and frame.f_lasti in _follows_call(frame.f_code, calls):
            count += 1
            if count == nth:
                seen = f"{frame.f_code.co_name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return seen


def _follows_call(code: CodeType, known: dict[CodeType, set[int]]) -> set[int]:
    if code not in known:
        found, may = set(), False
        for one in dis.get_instructions(code):
            if may:
                found.add(one.offset)
            may = one.opname.startswith(("CALL", "RESUME")) or (may and one.opname == "CACHE")
        known[code] = found
    return known[code]


def descriptors() -> list[str]:
    """The targets of all open descriptors."""
    with os.scandir("/proc/self/fd") as found:
        return sorted(os.readlink(entry.path) for entry in found)


def only_one_thread() -> bool:
    """Whether all other threads stop running Python code; interrupted starts end soon.

    Up to 3.12, Python's own count omits threads whose ``join`` was interrupted.
    """
    end = time.monotonic() + 300
    while len(sys._current_frames()) > 1:
        if time.monotonic() > end:
            return False
        time.sleep(0.001)
    return True


def transfer_functions() -> list[str]:
    """The functions of background transfers and snapshots that other threads are running."""
    found = []
    for thread, innermost in sys._current_frames().items():
        frame: FrameType | None = innermost
        while frame is not None and thread != threading.get_ident():
            if frame.f_code.co_filename.endswith(("/engine/background_job.py", "/saving/parallel_copy.py")):
                found.append(frame.f_code.co_name)
            frame = frame.f_back
    return found
