"""What goes wrong in a block store, as the public errors: with driver, place and LBA, and NVMe's status in words."""

from __future__ import annotations

import copy
import errno
from collections.abc import Sequence
from types import TracebackType
from typing import TypeVar

from fastio._native import nvme_status
from fastio.errors import FastIOError, RefusedError, TransferError
from fastio.runtime.native_errors import NativeError, public_error

E = TypeVar("E", bound=Exception)

BLOCK = 4096  # bytes, in which the native store counts

# errno, whether a write, device, its block, whether it stopped without an error, NVMe's status
Failure = tuple[int, bool, int, int, bool, int]


class StoreGoneError(FastIOError, RuntimeError):
    """The store is closed, or belongs to the process that forked this one."""


def transfer_error(
    driver: str, index: int, failure: Failure, places: Sequence[str], lba_bytes: Sequence[int]
) -> TransferError:
    """How a transfer of the blob ``index`` failed. ``lba_bytes`` is the size of a block on each of the places."""
    number, write, device, block, stuck, status = failure
    offset = block * BLOCK
    operation = f"driver {driver}: {'write' if write else 'read'} of index {index} at LBA {offset // lba_bytes[device]}"
    if stuck:
        operation += " (the device stopped moving bytes without an error)"
    if status:
        operation += f", with NVMe status {nvme_status(status)},"
    return TransferError(number, operation, places[device], offset)


def without_frames(error: E) -> E:
    """The error without its traceback, and without those of the errors that led to it: it can be kept.

    A traceback holds the frames of the calls that it came through, and these the whole graph that is computed.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def again(error: Exception) -> Exception:
    """An error like one that is kept, to be raised: what is raised gets frames."""
    try:
        return copy.copy(error)
    except Exception:  # one of a store that is not ours, which cannot be made from its arguments
        return FastIOError(f"{type(error).__name__}: {error}")


class Naming:
    """A context in which native errors become the public ones; without a generator, for it surrounds every call."""

    __slots__ = ("_driver", "_path")

    def __init__(self, path: str, driver: str) -> None:
        self._path = path
        self._driver = driver

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        public = self._public(error)
        if public is not None:
            try:
                raise public from None
            finally:
                # Else the error holds this frame and the frame the error, and with them all that the caller is at.
                del public, error, at

    def _public(self, error: BaseException | None) -> Exception | None:
        if isinstance(error, NativeError):
            public = public_error(error, self._path)
            if isinstance(public, RefusedError):
                return TransferError(errno.EIO, f"driver {self._driver} ({public})", self._path)
            return public
        if isinstance(error, RuntimeError) and not isinstance(error, FastIOError):
            return StoreGoneError(f"{self._path}: {error}")
        return None
