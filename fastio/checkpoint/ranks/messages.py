"""Sends values of ranks to the first one and back, and with them the errors of any."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, TypeVar

from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.ranks.members import sendable
from fastio.errors import RankError, RankLostError
from fastio.runtime.gc_pause import gc_paused

_Value = TypeVar("_Value")


class Messages:
    """Values, or the errors of those that have none, of all ranks. All ranks call the same methods."""

    def __init__(self, connections: Gloo) -> None:
        self._connections = connections

    def gathered(self, value: Any, error: Exception | None) -> list[Any] | RankError | None:
        """Return the values of all ranks on the first one, or their errors; nothing on the others."""
        with gc_paused():
            sent = pickle.dumps((value, None if error is None else sendable(error)))
        gathered = self._connections.gather(sent)
        with gc_paused():  # reports have thousands of objects
            answers = [pickle.loads(one) for one in gathered]
        errors = {rank: found for rank, (_, found) in enumerate(answers) if found is not None}
        if errors:
            return RankError(errors)
        return [value for value, _ in answers] if answers else None

    def scattered(self, values: list[Any] | None, error: Exception | None) -> Any:
        """Return the value for this rank of those that the first one has. Its error is raised on all."""
        if error is not None and not isinstance(error, RankError):
            error = RankError({0: sendable(error)})
        if self._connections.rank == 0:
            sent = [pickle.dumps((value, error)) for value in values or [None] * self._connections.world]
        else:
            sent = []
        value, found = pickle.loads(self._connections.scatter(sent))
        if found is not None:
            raise found
        return value


def tried(work: Callable[[], _Value]) -> tuple[_Value | None, Exception | None]:
    """The result of ``work``, or its error, which the other ranks must learn. A lost rank is an error of all."""
    try:
        return work(), None
    except RankLostError:
        raise
    except Exception as error:
        return None, error
