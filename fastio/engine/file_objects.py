"""Loads from file objects: torch reads them; the formats that torch lacks go by way of memory."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from fastio.engine.background_job import Progress, tell_end
from fastio.engine.executor import result_of
from fastio.engine.load import load_open
from fastio.engine.plan import LoadRequest
from fastio.engine.torch_load import READ_WHOLE, call_torch
from fastio.errors import TransferError
from fastio.formats import foreign
from fastio.formats.detect import HEAD_BYTES, PT, detect
from fastio.results import Transfer
from fastio.transports.transport import LOAD, TransportResult

_REASON = "f is a file object"
_STEP = 1 << 20


def load_stream(request: LoadRequest, f: Any, progress: Progress | None) -> tuple[Any, Transfer]:
    """Load from a file object, from its position to its end.

    What torch.load reads is not verified: the file object may be one that cannot be read twice.
    """
    started = time.perf_counter()
    file_format, at = _detect(f, request.path)
    if file_format is not None:
        if request.mmap:
            raise ValueError(f"{request.path}: mmap=True needs a path, got a file object")
        with _in_memory(f, request.path) as (fd, size):
            obj, transfer = load_open(request._replace(policy="torch"), fd, size, file_format, started, progress)
        return obj, replace(transfer, tool="memory", route="stream", reason=_REASON)
    is_plain = at is not None and request.arguments.get("pickle_module") is None
    with foreign.named_errors(request.path, lambda: _again(f, at)) if is_plain else contextlib.nullcontext():
        obj = call_torch(request, f)
    tell_end(progress, 0)
    keys = [READ_WHOLE] if request.keys is not None else []
    notes = (*keys, *(["not verified: f is a file object"] if request.verify else []))
    moved, seconds = TransportResult("stream", notes=notes), time.perf_counter() - started
    return obj, result_of(LOAD, request.path, PT, "torch", moved, _REASON, 0, seconds)


def _detect(f: Any, name: str) -> tuple[str | None, Any]:
    """The format of what lies from the position on, which stays where it is, and that position.

    None for what torch must judge. No position if the file object cannot be read twice, or has a zip archive, whose
    errors torch names well.
    """
    try:
        at = f.tell()
        f.seek(at)
        first = _head(f, HEAD_BYTES)
        f.seek(at)
    except (AttributeError, OSError):
        return None, None  # torch says what it asks of a file object
    if not isinstance(first, bytes | bytearray):
        return None, None
    file_format = detect(bytes(first), name)
    return (None, None) if file_format == PT else (file_format, at)


def _again(f: Any, at: Any) -> bytes:
    """The first bytes of a file object that torch failed on; it is left behind them."""
    f.seek(at)
    return bytes(_head(f, foreign.HEAD_BYTES))


def _head(f: Any, nbytes: int) -> Any:
    """The first bytes, or whatever else a file object reads."""
    first = more = f.read(nbytes)
    # A raw file may give less than it has.
    while isinstance(first, bytes | bytearray) and more and len(first) < nbytes:
        more = f.read(nbytes - len(first))
        first = first + more
    return first


@contextlib.contextmanager
def _in_memory(f: Any, name: str) -> Iterator[tuple[int, int]]:
    """The file descriptor and the size of a file in memory that holds the rest of a file object."""
    with open(os.memfd_create("fastio"), "w+b") as file:
        while piece := f.read(_STEP):
            file.write(piece)
        if piece is None:
            raise TransferError(errno.EAGAIN, "read from a file object that does not block", name)
        file.flush()
        yield file.fileno(), file.tell()
