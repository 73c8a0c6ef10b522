"""Ctrl-C, a polite kill and a closed terminal: they end what is measured, wherever they come, and nothing else.

Python answers a signal with an exception at whatever line it is. Where that is a destructor or a callback of another
library, Python only tells of the exception, and goes on. So it is kept that a signal came, and what every measurement
passes through asks for it: see :func:`check`.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

STATUS = 130  # the exit status of what was interrupted: 128 + SIGINT, as shells have it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _State:
    """Signals are the process's, and so is this: whether one came, and whether one is an exception just now."""

    came: bool = False
    raises: bool = False
    held: bool = False


_state = _State()


def check() -> None:
    """Raise KeyboardInterrupt in what is :func:`heeded` where a signal came before, and its exception was lost."""
    if _state.came and _state.raises:
        raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[None]:
    """A signal is a KeyboardInterrupt: at once, or where that was lost, or it came before, at a check or at the end."""
    with _answered(raises=True):
        yield
        check()


@contextmanager
def undisturbed() -> Iterator[None]:
    """A signal changes nothing here but in what is :func:`heeded`: while files are removed or results are written, it
    would leave half of them."""
    with _answered(raises=False):
        yield


@contextmanager
def held() -> Iterator[None]:
    """A moment that must not be left half done, as between a process's start and its note: signals wait for the end."""
    _state.held = True
    try:
        yield
    finally:
        _state.held = False
    check()


def default() -> None:
    """From here on a signal ends the process without a word: on the way out there is nothing left to keep."""
    for number in _heard():
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def _answered(raises: bool) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _heard()}
    outer, hook = _state.raises, sys.unraisablehook

    def tell(lost: UnraisableHookArgs) -> None:
        if not (_state.came and lost.exc_type is KeyboardInterrupt):  # which is raised again
            hook(lost)

    try:
        _state.raises, sys.unraisablehook = raises, tell
        for number in before:
            signal.signal(number, _hear)
        yield
    finally:
        _state.came, _state.raises, sys.unraisablehook = False, outer, hook  # what came is answered with that
        for number, answer in before.items():
            signal.signal(number, answer)


def _heard() -> list[signal.Signals]:
    """Those that are not ignored, as in a shell's background or under nohup: these stay so."""
    return [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _hear(number: int, frame: FrameType | None) -> None:
    _state.came = True
    if _state.raises and not _state.held:
        raise KeyboardInterrupt
