"""Which operator saves a tensor, and which saved tensors may still be written to by the operator that saved them.

Some operators save a tensor first and fill it afterwards, and do not count that as a new version: RReLU its noise,
batch normalisation its running statistics. So the bytes of a saved tensor are read only once its operator has returned.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from fastio.offload.autograd.saved_tensor import SavedTensor, View

# Autograd numbers its nodes on each thread. An operator makes its node, then saves, then runs, and saves its results:
# all of that under one number. The next operator that saves anything has another one.
_sequence_number: Any = torch._C._autograd._get_sequence_nr


class Operator(NamedTuple):
    """An operator that runs under autograd."""

    thread: int
    number: int


class Move(NamedTuple):
    """A blob that is to be moved out, and how."""

    blob: SavedTensor
    view: View
    waits: bool  # for the transfer
    tier: str
    encodes: bool


def running() -> Operator:
    """The operator that this thread is in, where a pack hook asks for it."""
    return Operator(threading.get_ident(), _sequence_number())


class Unreturned:
    """Moves of what operators saved that were not seen to return."""

    def __init__(self) -> None:
        self._moves: dict[Operator, list[Move]] = {}

    def add(self, operator: Operator, move: Move) -> None:
        """An operator saved a new blob."""
        self._moves.setdefault(operator, []).append(move)

    def take(self, operator: Operator | None = None) -> list[Move]:
        """The moves of operators that have returned now that their thread runs this one; of all, where None is given.

        Each move is given once.
        """
        over = [
            by
            for by in self._moves
            if operator is None or (by.thread == operator.thread and by.number != operator.number)
        ]
        return [move for by in over for move in self._moves.pop(by)]
