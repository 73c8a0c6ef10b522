"""Handles SIGINT, SIGTERM and SIGHUP: they end a measurement at any point, and disturb nothing else.

Python raises an exception at the line where a signal arrives. Inside a destructor or a callback of another library,
Python only reports that exception and goes on. So the signal is recorded as well, and every measurement checks the
record: see :func:`check`.
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

STATUS = 130  # exit status of an interrupted run: 128 + SIGINT, as in shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class _State:
    """Process-wide state: whether a signal came, and whether signals raise an exception at present."""

    came: bool = False
    raises: bool = False
    held: bool = False


_state = _State()


def check() -> None:
    """Raise KeyboardInterrupt if a signal came earlier and its exception was lost. Only within :func:`heeded`."""
    if _state.came and _state.raises:
        raise KeyboardInterrupt


@contextmanager
def heeded() -> Iterator[None]:
    """Turn signals into KeyboardInterrupt: at once, or, if that exception was lost, at a check or at the end."""
    with _answered(raises=True):
        yield
        check()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Ignore signals in the block, except where they are :func:`heeded`.

    Removing files or writing results must not stop half-way.
    """
    with _answered(raises=False):
        yield


@contextmanager
def held() -> Iterator[None]:
    """Delay signals to the end of the block: for steps that belong together, as starting a process and recording it."""
    _state.held = True
    try:
        yield
    finally:
        _state.held = False
    check()


def default() -> None:
    """Let signals end the process silently from now on: at exit there is nothing left to save."""
    for number in _heard():
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def _answered(raises: bool) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in _heard()}
    outer, hook = _state.raises, sys.unraisablehook

    def tell(lost: UnraisableHookArgs) -> None:
        if not (_state.came and lost.exc_type is KeyboardInterrupt):  # that one is raised again later
            hook(lost)

    try:
        _state.raises, sys.unraisablehook = raises, tell
        for number in before:
            signal.signal(number, _hear)
        yield
    finally:
        _state.came, _state.raises, sys.unraisablehook = False, outer, hook  # the recorded signal has been handled
        for number, answer in before.items():
            signal.signal(number, answer)


def _heard() -> list[signal.Signals]:
    """The signals that are not ignored. Ignored ones, as under nohup, stay ignored."""
    return [number for number in _SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]


def _hear(number: int, frame: FrameType | None) -> None:
    _state.came = True
    if _state.raises and not _state.held:
        raise KeyboardInterrupt
