"""Finds which operator saves a tensor, and delays moves until that operator has returned.

Some operators save a tensor and fill it afterwards without a new version: RReLU its noise, batch normalisation its
running statistics. So the bytes of a saved tensor are read only after its operator has returned.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from fastio.offload.autograd.saved_tensor import SavedTensor, View

# Autograd numbers its nodes per thread. An operator makes its node, saves its inputs, runs and saves its results under
# one number. The next operator that saves a tensor has another number.
_sequence_number: Any = torch._C._autograd._get_sequence_nr


class Operator(NamedTuple):
    """A running operator that autograd records."""

    thread: int
    number: int


class PendingMove(NamedTuple):
    """A saved tensor to move out, and how."""

    saved: SavedTensor
    view: View
    waits: bool  # for the transfer
    tier: str
    encodes: bool


def current_operator() -> Operator:
    """Return the operator that called the pack hook on this thread."""
    return Operator(threading.get_ident(), _sequence_number())


class PendingMoves:
    """Moves of tensors whose operators have not been seen to return."""

    def __init__(self) -> None:
        self._moves: dict[Operator, list[PendingMove]] = {}

    def add(self, operator: Operator, move: PendingMove) -> None:
        """Add the move of a tensor that ``operator`` saved."""
        self._moves.setdefault(operator, []).append(move)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors to move."""
        return sum(move.saved.nbytes for moves in self._moves.values() for move in moves)

    def take(self, operator: Operator | None = None) -> list[PendingMove]:
        """Return and remove the moves of operators that have returned.

        ``operator`` runs now, so earlier operators on its thread have returned. With None, all moves are returned.
        """
        over = [
            by
            for by in self._moves
            if operator is None or (by.thread == operator.thread and by.number != operator.number)
        ]
        return [move for by in over for move in self._moves.pop(by)]
