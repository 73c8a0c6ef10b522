"""Notes a signal that asks the program to end, such as SIGTERM, and limits the time that saves take afterwards."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import threading
import time
import weakref
from functools import partial
from typing import Any

from fastio.errors import CheckpointError, quoted

_CANNOT_BE_HANDLED = {signal.SIGKILL, signal.SIGSTOP}


class StopSignals:
    """Handlers that only note which signal came first, and when the time that is left for saving ends.

    The handler that was there before is called too; not Python's own one for Ctrl-C at the first signal, for it would
    end the training loop before its save. Forked children get the handlers that were there before.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._within: dict[int, float] = {}
        self._handlers: dict[int, tuple[Any, Any]] = {}  # by signal: our own, and the one before
        self._deadline, self._seconds = math.inf, math.inf
        _all.add(self)

    def listen(self, number: int, within: float) -> None:
        """Handle a signal: see :meth:`fastio.Checkpointer.on_signal`."""
        valid = signal.valid_signals() - _CANNOT_BE_HANDLED
        if isinstance(number, bool | float) or not _is_number(number) or number not in valid:
            raise ValueError(f"signal={quoted(number)}: expected one that can be handled, such as signal.SIGTERM")
        if not _is_number(within) or not 0 < within < math.inf:
            raise ValueError(f"within={quoted(within)}: expected seconds, more than 0")
        if threading.current_thread() is not threading.main_thread():
            raise CheckpointError("on_signal must be called in the main thread, where Python runs handlers of signals")
        self._within[number] = within
        if number in self._handlers:
            return
        before = _still_heard(signal.getsignal(number))
        if before is None:
            raise CheckpointError(
                f"the handler of {signal.Signals(number).name} is not Python's: it could not be restored"
            )
        own = partial(_handle, weakref.ref(self), before)
        self._handlers[number] = (own, before)
        signal.signal(number, own)

    def note(self, number: int) -> bool:
        """Note a signal; returns whether it is the first. False if nobody listens any more."""
        if self.received is not None or number not in self._handlers:
            return False
        self._begin(signal.Signals(number), self._within[number])
        return True

    def adopt(self, received: signal.Signals | None) -> None:
        """Note a signal that another rank got, as if it came here now."""
        if received is not None and self.received is None:
            self._begin(received, self._within.get(received, max(self._within.values(), default=math.inf)))

    def _begin(self, received: signal.Signals, seconds: float) -> None:
        self._deadline, self._seconds = time.monotonic() + seconds, seconds
        self.received = received

    @property
    def is_listening(self) -> bool:
        """Whether :meth:`listen` was called."""
        return bool(self._within)

    def require_time(self, step: int) -> None:
        """Raise CheckpointError if the time for saving has ended."""
        if self.received is not None and time.monotonic() > self._deadline:
            raise CheckpointError(
                f"step {step} was not written within {self._seconds:g} s of {self.received.name}: "
                "nothing of it is left, earlier steps are intact; allow more time, or save more often"
            )

    def restore(self) -> None:
        """Restore the handlers that were there before, unless others have taken the place of ours."""
        for number, (own, before) in list(self._handlers.items()):
            with contextlib.suppress(ValueError):  # not in the main thread: ours does from now on what was there before
                if signal.getsignal(number) is own:
                    signal.signal(number, _still_heard(before))
            del self._handlers[number]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _still_heard(handler: Any) -> Any:
    """Return a handler, or, of one of ours whose Checkpointer is closed or gone, the handler that was there before."""
    while isinstance(handler, partial) and handler.func is _handle:
        listener, before = handler.args
        stop = listener()
        if stop is not None and any(own is handler for own, _ in stop._handlers.values()):
            break
        handler = before
    return handler


def _handle(listener: weakref.ref[StopSignals], before: Any, number: int, frame: Any) -> None:
    stop = listener()
    is_first = stop is not None and stop.note(number)
    is_heard = stop is not None and number in stop._handlers
    before = _still_heard(before)
    if callable(before) and not (is_first and before is signal.default_int_handler):
        before(number, frame)
    elif not is_heard and before == signal.SIG_DFL:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_all: weakref.WeakSet[StopSignals] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for stop in list(_all):
        stop.restore()


os.register_at_fork(after_in_child=_after_fork_in_child)
