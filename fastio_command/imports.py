"""Imports that Ctrl-C ends."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def ended_by_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C ends the process at once, with one line on stderr and status 130.

    A KeyboardInterrupt may be lost there: torch takes numpy, whose import it ended, for missing, and goes on with half
    of it.
    """
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, _end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _end(*_: object) -> None:
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(130)  # 128 + SIGINT, as shells have it
