"""Names the file in errors of an unpickler that read opcodes without sense.

Neither torch's unpickler nor Python's catches what its own steps raise: an empty stack, an unknown memo, a call with
too few arguments. What a user's function raises (a ``map_location``, a ``__setstate__``) passes as it is.
"""

from __future__ import annotations

import struct
from functools import partial
from types import TracebackType

from fastio.errors import CorruptFileError, FastIOError, shortened
from fastio.runtime.handled_errors import HandledErrors

_OPCODES = (EOFError, IndexError, KeyError, UnicodeDecodeError, OverflowError, struct.error)
_CALLS = (TypeError, ValueError, AssertionError)  # also those of a class that was changed
_UNPICKLERS = ("torch", "fastio", "pickle", "collections")


def named_pickle_errors(path: str, record: str, weights_only: bool) -> HandledErrors[Exception]:
    """Inside, such errors become CorruptFileErrors that name ``path`` and the ``record``.

    Without ``weights_only`` a pickle may call anything, so a call with wrong arguments passes as it is.
    """
    return HandledErrors((*_OPCODES, *(_CALLS if weights_only else ())), partial(_raise, path, record))


def _raise(path: str, record: str, error: Exception) -> None:
    if not isinstance(error, FastIOError) and _raised_in_unpickler(error.__traceback__):
        raise corrupt_pickle(path, record, error) from error


def corrupt_pickle(path: str, record: str, error: Exception) -> CorruptFileError:
    """The error for a pickle that an unpickler failed on."""
    said = f"{type(error).__name__}: {shortened(error)}"
    problem = f"cannot be unpickled ({said}): the file was damaged or altered; restore it from a copy"
    return CorruptFileError(path, record, problem)


def _raised_in_unpickler(trace: TracebackType | None) -> bool:
    """Whether the innermost frame is of an unpickler, not of code that it called for a user."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return module.partition(".")[0] in _UNPICKLERS
