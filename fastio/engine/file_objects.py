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
    file_format = _detect(f, request.path)
    if file_format is not None:
        if request.mmap:
            raise ValueError(f"{request.path}: mmap=True needs a path, got a file object")
        with _in_memory(f, request.path) as (fd, size):
            obj, transfer = load_open(request._replace(policy="torch"), fd, size, file_format, started, progress)
        return obj, replace(transfer, tool="memory", route="stream", reason=_REASON)
    obj = call_torch(request, f)
    tell_end(progress, 0)
    keys = [READ_WHOLE] if request.keys is not None else []
    notes = (*keys, *(["not verified: f is a file object"] if request.verify else []))
    moved, seconds = TransportResult("stream", notes=notes), time.perf_counter() - started
    return obj, result_of(LOAD, request.path, PT, "torch", moved, _REASON, 0, seconds)


def _detect(f: Any, name: str) -> str | None:
    """The format of what lies from the position on, which stays where it is; None for what torch must judge."""
    try:
        at = f.tell()
        f.seek(at)
        first = _head(f)
        f.seek(at)
    except (AttributeError, OSError):
        return None  # it cannot be read twice: torch says what it asks of a file object
    file_format = detect(bytes(first), name) if isinstance(first, bytes | bytearray) else None
    return None if file_format == PT else file_format


def _head(f: Any) -> Any:
    """The first bytes, or whatever else a file object reads."""
    first = more = f.read(HEAD_BYTES)
    # A raw file may give less than it has.
    while isinstance(first, bytes | bytearray) and more and len(first) < HEAD_BYTES:
        more = f.read(HEAD_BYTES - len(first))
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
