"""One operation from start to end: choose a tool, try it, fall back to the next, learn, and report what happened.

Every save, load, checkpoint, DCP and feature-map transfer goes through :class:`Execution`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from fastio._native import Control
from fastio.engine.operation import Operation
from fastio.engine.tool_selection import decide
from fastio.errors import FastIOError, RefusedError, ToolUnavailableError, TransferError
from fastio.results import SaveResult, Transfer
from fastio.transports.transport import TransportResult

_Done = TypeVar("_Done")


class Execution:
    """An operation under way. A tool that could not do it is not tried again.

    ``control``: no other tool is tried once it is cancelled. ``tools``: these are tried, in this order, instead of
    those that the dictionary chooses. ValueError for a policy that is none, DictionaryError for a bad file,
    ToolUnavailableError for a tool that was named and cannot do this.
    """

    def __init__(
        self, operation: Operation, control: Control | None = None, tools: tuple[str, ...] | None = None
    ) -> None:
        self.operation = operation
        self.decision = decide(operation)
        self._control = control
        self._left = list(self.decision.order if tools is None else tools)
        self._chosen = self.tool
        self.failures: list[str] = []

    @property
    def tool(self) -> str:
        """The tool that did it, or is tried next; empty if none is left."""
        return self._left[0] if self._left else ""

    def run(self, move: Callable[[str], _Done], before_retry: Callable[[], object] | None = None) -> _Done:
        """Call ``move`` with one tool after the other until one succeeds, and return what it returned.

        ``before_retry`` is called before another tool is tried. RefusedError if no tool could, or the TransferError
        that the first one failed with.
        """
        first: Exception | None = None
        try:
            while self._left:
                try:
                    return move(self.tool)
                except (RefusedError, ToolUnavailableError) as error:
                    if self.decision.fixed and isinstance(error, ToolUnavailableError):
                        raise
                    if self._control is not None and self._control.cancelled:
                        raise
                    first = first or error
                    failed = self._left.pop(0)
                    self.failures.append(f"{failed}: {error}")
                    self.decision.fail(failed, str(error))
                    if before_retry is not None:
                        before_retry()
            raise self._no_tool_left(first)
        finally:
            del first  # its traceback refers to this frame: a cycle, which would keep the callers' tensors alive

    def learn(self) -> float:
        """Tell the dictionary how long the operation took, until now; return that, in seconds."""
        seconds = time.perf_counter() - self.operation.started
        self.decision.learn(self.tool, seconds)
        return seconds

    def saved(self, moved: TransportResult, verified: bool = True, reason: str = "") -> SaveResult:
        """Learn, and return the result of a save. ``reason``: why this tool, where no dictionary chose it."""
        return SaveResult(**self._fields(moved, verified, reason, ()))

    def loaded(self, moved: TransportResult, verified: bool, notes: tuple[str, ...] = ()) -> Transfer:
        """Learn, and return the result of a load. ``notes`` stand before those of the transport."""
        return Transfer(**self._fields(moved, verified, "", notes))

    def _fields(self, moved: TransportResult, verified: bool, reason: str, notes: tuple[str, ...]) -> dict[str, Any]:
        operation = self.operation
        chosen = self.decision.reason if self.tool == self._chosen else f"{self._chosen} could not"
        return {
            "op": operation.kind,
            "path": operation.path,
            "format": operation.file_format,
            "tool": self.tool,
            "route": moved.route,
            "reason": reason or chosen,
            "nbytes": operation.nbytes,
            "seconds": self.learn(),
            "durable": operation.durable,
            "verified": verified,
            "fallbacks": (*self.decision.missing, *self.failures, *notes, *moved.notes),
        }

    def _no_tool_left(self, first: Exception | None) -> FastIOError:
        """The error of the first tool if the system refused, else one that tells what each tool failed with."""
        if first is not None and isinstance(first.__cause__, TransferError):
            return first.__cause__
        operation = self.operation
        cure = " (it was asked for by name: policy='auto' would try another one)" if self.decision.fixed else ""
        notes = "; ".join((*self.decision.missing, *self.failures))
        error = RefusedError(f"no tool could {operation.kind} {operation.path}: {notes}{cure}")
        error.__cause__ = first
        return error
