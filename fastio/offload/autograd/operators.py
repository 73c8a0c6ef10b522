"""Finds which operator saves a tensor, and delays moves until that operator has returned.

Some operators save a tensor and fill it afterwards without a new version: RReLU its noise, batch normalisation its
running statistics. So the bytes of a saved tensor are read only after its operator has returned.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import torch

from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.autograd.views import View
from fastio.offload.planning.profile import Placement

# Autograd numbers its nodes per thread. An operator makes its node, saves its inputs, runs and saves its results under
# one number. The next operator that saves a tensor has another number.
_sequence_number: Any = torch._C._autograd._get_sequence_nr


Operator = tuple[int, int]
"""A running operator that autograd records: its thread and its number there."""


class PendingMove(NamedTuple):
    """A saved tensor to move out, and how."""

    saved: SavedTensor
    view: View
    placement: Placement


def current_operator() -> Operator:
    """Return the operator that called the pack hook on this thread."""
    return threading.get_ident(), _sequence_number()


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
        nbytes = 0
        for moves in self._moves.values():
            for move in moves:
                nbytes += move.saved.nbytes
        return nbytes

    def take(self, operator: Operator | None = None) -> list[PendingMove]:
        """Return and remove the moves of operators that have returned.

        ``operator`` runs now, so earlier operators on its thread have returned. With None, all moves are returned.
        """
        moves: list[PendingMove] = []
        for by in list(self._moves):
            if operator is None or (by[0] == operator[0] and by[1] != operator[1]):
                moves += self._moves.pop(by)
        return moves
