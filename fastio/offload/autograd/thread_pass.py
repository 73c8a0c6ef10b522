"""What one thread runs under an Offload: torch's saved-tensor hooks hold for the thread that installed them only.

The workers of nn.DataParallel (Fastensor, section 4.3.1) are such threads.

A tensor may leave after its last use in the forward pass (FlashNeuron, section 3.3). Moves of tensors are delayed until
the operator that saved them has returned. Some operators save a tensor and fill it afterwards without a new version:
RReLU its noise, batch normalisation its running statistics.
"""

from __future__ import annotations

import operator
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import PushedHooks
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.autograd.views import View
from fastio.offload.planning.profile import Placement

if TYPE_CHECKING:
    from fastio.offload.codecs.saved_tensor_encoding import Packing

PendingMove = tuple[SavedTensor, View, Placement]
"""A saved tensor to move out, the view of it that was saved, and how to move it."""

_NONE = -1


class ThreadPass:
    """A forward pass of one thread.

    ``step`` is None when it is over; what the thread still saves under our hooks then stays in memory. ``taken``: it
    began with a module's forward, and ends with it; otherwise a ``with`` statement in this thread began it.
    """

    def __init__(self, step: ForwardPass, taken: bool) -> None:
        self.step: ForwardPass | None = step
        self.taken = taken
        self.thread = threading.current_thread()
        # The number of the operator that saved the latest tensor. Autograd numbers its nodes per thread. An operator
        # makes its node, saves its inputs, runs and saves its results under one number; the next one that saves a
        # tensor has another.
        self.operator = _NONE
        self.moves: list[PendingMove] = []  # of tensors that it and those before it saved
        self.moves_nbytes = 0
        self.packing: deque[Packing] = deque()  # before them, oldest first
        self.packing_nbytes = 0
        self.modules: list[str] = []  # the classes of the modules that run, the innermost last
        self.hooks = PushedHooks()
        self.pack: Any = None  # the pack hook, which only this thread has
        self.unpack: Any = operator.methodcaller("unpack")  # the unpack hook

    def take(self) -> list[PendingMove]:
        """Return and remove the moves. The operators that saved these tensors have returned."""
        moves, self.moves, self.moves_nbytes = self.moves, [], 0
        return moves

    def add_packing(self, packing: Packing) -> None:
        """Add a tensor that moves when it is packed."""
        self.packing.append(packing)
        self.packing_nbytes += packing.nbytes

    def remove_packed(self) -> None:
        """Remove the oldest tensor that :meth:`add_packing` added."""
        self.packing_nbytes -= self.packing[0].nbytes
        self.packing.popleft()

    def take_packing(self) -> list[SavedTensor]:
        """Return and remove the tensors that are not packed."""
        packing, self.packing, self.packing_nbytes = self.packing, deque(), 0
        return [one.saved for one in packing]

    def add(self, move: PendingMove) -> None:
        """Add the move of a tensor that the latest operator has saved."""
        self.moves.append(move)
        self.moves_nbytes += move[0].nbytes
