"""What a function returns that replaces functions of another library: it undoes the replacement."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType


class FunctionPatch:
    """A replacement that is in force until :meth:`undo`, or until the end of the context that it is used as."""

    def __init__(self, undo: Callable[[], None]) -> None:
        self._undo: Callable[[], None] | None = undo

    def __repr__(self) -> str:
        return f"<fastio FunctionPatch: {'undone' if self._undo is None else 'in force'}>"

    def undo(self) -> None:
        """End this patch; the last one to end restores the originals. A second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> FunctionPatch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.undo()
