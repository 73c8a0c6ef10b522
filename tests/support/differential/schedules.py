"""Schedules: delay reads, threads and lines of Python; a seed determines where. See schedule.c."""

from __future__ import annotations

import ctypes
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

LIBRARY = "schedule.so"
_MILLISECONDS = 1e-3


def build(folder: Path) -> Path:
    """Compile schedule.c to a library for LD_PRELOAD. Raises RuntimeError without a C compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise RuntimeError("no C compiler (gcc or cc) on PATH: schedules need one")
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / LIBRARY
    command = [compiler, "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    source = Path(__file__).with_name("schedule.c")
    subprocess.run([*command, str(source), "-o", str(library), "-ldl", "-lpthread"], check=True)
    return library


def _preloaded() -> Any:
    """The library if this process was started with it, else None."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "schedule_begin"):
        return None
    library.schedule_begin.argtypes = [ctypes.c_ulong, ctypes.c_long]
    library.schedule_begin.restype = None
    library.schedule_end.restype = ctypes.c_ulong
    return library


def strikes() -> int:
    """How often schedules delayed, cut or reordered a call of this process."""
    library = _preloaded()
    return int(library.schedule_end()) if library is not None else 0


class Schedule:
    """A context that delays the process at random places, by at most ``milliseconds`` in all.

    It has no effect without the library. Half of the schedules also pause the main thread between calls of Python
    functions; some pauses are long enough for all reads to end before unpickling continues.
    """

    def __init__(self, rng: random.Random, milliseconds: int) -> None:
        self._library = _preloaded()
        self._seed = rng.getrandbits(63) | 1
        self._budget = milliseconds
        self._pauses = rng.random() < 0.5
        self._rng = random.Random(self._seed)
        self._left = milliseconds * _MILLISECONDS
        self._next = self._rng.randrange(1, 200)

    def __enter__(self) -> Schedule:
        if self._library is not None:
            self._library.schedule_begin(self._seed, self._budget * 1000)
            if self._pauses:
                sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        if self._library is not None:
            sys.setprofile(None)
            self._library.schedule_end()

    def _called(self, _: FrameType, event: str, __: Any) -> None:
        self._next -= 1
        if self._next > 0:
            return
        self._next = self._rng.randrange(1, 600)
        pause = self._rng.choice([0, 0.5, 2, 2, 40]) * _MILLISECONDS
        if pause <= self._left:
            self._left -= pause
            time.sleep(pause)
