"""A context that hands errors to a function, which may raise another one."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, TypeVar

_Error = TypeVar("_Error", bound=BaseException)


class HandledErrors(Generic[_Error]):
    """Inside, ``handle`` is called with errors of some classes. What it does not turn into another error passes on.

    It is no generator: on Python 3.12 the frame of a generator that raises another error, and the first error, keep
    each other alive until the next garbage collection, and so the frames of all callers, with their tensors.
    """

    __slots__ = ("_handle", "_kinds")

    def __init__(self, kinds: type[_Error] | tuple[type[_Error], ...], handle: Callable[[_Error], object]) -> None:
        self._kinds = kinds
        self._handle = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, self._kinds):
            self._handle(error)
