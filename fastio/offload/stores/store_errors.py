"""Turns block store failures into public errors: with driver, place and LBA, and the NVMe status in words."""

from __future__ import annotations

import copy
import errno
from collections.abc import Sequence
from typing import TypeVar

from fastio._native import nvme_status
from fastio.errors import FastIOError, RefusedError, TransferError
from fastio.runtime.handled_errors import HandledErrors
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


def public_errors(path: str, driver: str) -> HandledErrors[Exception]:
    """Return a context that converts native errors to public ones."""

    def convert(error: Exception) -> None:
        if isinstance(error, NativeError):  # without a name for the public one: its frames would keep it alive
            raise _public_error(error, path, driver) from None
        if not isinstance(error, FastIOError):
            raise StoreGoneError(f"{path}: {error}") from None

    return HandledErrors((NativeError, RuntimeError), convert)


def _public_error(error: NativeError, path: str, driver: str) -> Exception:
    public = public_error(error, path)
    refused = isinstance(public, RefusedError)
    return TransferError(errno.EIO, f"driver {driver} ({public})", path) if refused else public
