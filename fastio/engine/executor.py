"""One save or load by the tools of a decision, best first, until one did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fastio._native import Control
from fastio.engine.tool_selection import Decision
from fastio.errors import RefusedError, ToolUnavailableError

_Done = TypeVar("_Done")


class Attempts:
    """The tools of a decision for ``doing``, as in "load state.pt": one that could not is not asked again.

    ``order``: these instead of the decision's. Once ``control`` is cancelled, no other is asked. ``notes`` are what is
    to be said of those that were asked before, or were unavailable.
    """

    def __init__(
        self, decision: Decision, doing: str, order: tuple[str, ...] = (), control: Control | None = None
    ) -> None:
        self._decision, self._doing, self._control = decision, doing, control
        self._first, *_ = self._left = list(order or decision.order)
        self.notes = list(decision.missing)

    @property
    def tool(self) -> str:
        """The one that did it, or is being asked; empty where none is left."""
        return self._left[0] if self._left else ""

    @property
    def reason(self) -> str:
        """Why that one."""
        return self._decision.reason if self.tool == self._first else f"{self._first} could not"

    def run(self, attempt: Callable[[str], _Done], again: Callable[[], object] | None = None) -> _Done:
        """What the first tool that could do it gave; ``again`` is called before another one tries.

        RefusedError if none could, or the TransferError of the first.
        """
        first: Exception | None = None
        while self._left:
            try:
                return attempt(self.tool)
            except (RefusedError, ToolUnavailableError) as error:
                if self._decision.fixed and isinstance(error, ToolUnavailableError):
                    raise
                if self._control is not None and self._control.cancelled:
                    raise
                first = first or error
                tool = self._left.pop(0)
                self.notes.append(f"{tool}: {error}")
                self._decision.fail(tool, str(error))
                if again is not None:
                    again()
        raise self._decision.gave_up(self._doing, self.notes, first)
