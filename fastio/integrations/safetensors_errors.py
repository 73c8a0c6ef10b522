"""Makes fastio's errors instances of safetensors' SafetensorError too, which its callers catch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from safetensors import SafetensorError

from fastio.errors import FastIOError
from fastio.runtime.handled_errors import HandledErrors


def safetensor_errors() -> HandledErrors[FastIOError]:
    """Give each of fastio's errors that leaves the context SafetensorError as a further class."""
    return HandledErrors(FastIOError, _extend)


def _extend(error: FastIOError) -> FastIOError:
    kind: Any = type(error)
    error.__class__ = _extended(kind)
    return error


@functools.cache
def _extended(kind: Any) -> Any:
    """A subclass of ``kind`` and of SafetensorError, with the name of ``kind``."""
    if issubclass(kind, SafetensorError):
        return kind

    def reduce(error: FastIOError) -> tuple[Any, ...]:
        make, arguments = kind.__reduce__(error)[:2]
        return _extended_again, (kind if make is type(error) else make, arguments)

    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind.__name__, (kind, SafetensorError), {**names, "__reduce__": reduce})


def _extended_again(make: Callable[..., FastIOError], arguments: tuple[Any, ...]) -> FastIOError:
    """Unpickle an error that was extended."""
    return _extend(make(*arguments))
