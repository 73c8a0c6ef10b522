"""Turns block store failures into public errors: with driver, place and LBA, and the NVMe status in words."""

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

BLOCK = 4096  # bytes: the unit of the native store

# errno, is a write, device, its block, stopped without an error, NVMe status
Failure = tuple[int, bool, int, int, bool, int]


class StoreGoneError(FastIOError, RuntimeError):
    """The store is closed, or belongs to the process that forked this one."""


def transfer_error(
    driver: str, index: int, failure: Failure, places: Sequence[str], lba_bytes: Sequence[int]
) -> TransferError:
    """Return the error of a failed transfer. ``lba_bytes`` is the LBA size of each place."""
    number, write, device, block, stuck, status = failure
    offset = block * BLOCK
    operation = f"driver {driver}: {'write' if write else 'read'} of index {index} at LBA {offset // lba_bytes[device]}"
    if stuck:
        operation += " (the device stopped moving bytes without an error)"
    if status:
        operation += f", with NVMe status {nvme_status(status)},"
    return TransferError(number, operation, places[device], offset)


def without_frames(error: E) -> E:
    """Remove the traceback of an error, and the errors that led to it, so that the error can be kept.

    A traceback holds the frames of its calls, and these hold the whole graph.
    """
    error.__context__ = error.__cause__ = None
    return error.with_traceback(None)


def raisable_copy(error: Exception) -> Exception:
    """Return a copy of a kept error to raise: raising adds frames."""
    try:
        return copy.copy(error)
    except Exception:  # another store's error, which cannot be copied
        return FastIOError(f"{type(error).__name__}: {error}")


class PublicErrors:
    """A context that converts native errors to public ones. No generator, because it surrounds every call."""

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
                # Breaks the cycle of error and frame, which would keep the caller's objects alive.
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
