"""What one thread runs under an Offload: torch's saved-tensor hooks hold for the thread that installed them only."""

from __future__ import annotations

import threading
from typing import Any

from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import PushedHooks
from fastio.offload.autograd.operators import PendingMoves


class ThreadPass:
    """A forward pass of one thread.

    ``step`` is None when it is over; what the thread still saves under our hooks then stays in memory. ``taken``: it
    began with a module's forward, and ends with it; otherwise a ``with`` statement in this thread began it.
    """

    def __init__(self, step: ForwardPass, taken: bool) -> None:
        self.step: ForwardPass | None = step
        self.taken = taken
        self.thread = threading.current_thread()
        self.moves = PendingMoves()
        self.modules: list[str] = []  # the classes of the modules that run, the innermost last
        self.hooks = PushedHooks()
        self.pack: Any = None  # the pack hook, which only this thread has
        self.unpack: Any = hooks.unpack

    @property
    def innermost(self) -> str:
        """The class name of the innermost running module; "" outside of modules."""
        return self.modules[-1] if self.modules else ""
