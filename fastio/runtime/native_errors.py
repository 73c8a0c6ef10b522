"""Errors of the native part, which knows offsets but no paths, made into the public ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.errors import CorruptFileError, RefusedError, TransferError


class NativeError(Exception):
    """A native error: a kind and its fields. Never leaves the package: :func:`translate_native_errors`."""


@contextlib.contextmanager
def translate_native_errors(path: str) -> Iterator[None]:
    """Give native errors the path of the file they are about, and their public class."""
    try:
        yield
    except NativeError as error:
        raise public_error(error, path) from None


def public_error(error: NativeError, path: str) -> Exception:
    """The public error that a native one means, about this file."""
    kind, *fields = error.args
    if kind == "system":
        number, operation, offset = fields
        return TransferError(number, operation, path, offset)
    if kind == "truncated":
        return CorruptFileError(path, None, f"ends at byte {fields[0]}, before the data it promises: it was cut short")
    if kind == "malformed":
        record, problem = fields
        return CorruptFileError(path, record.decode("utf-8", "replace") or None, problem)
    return RefusedError(str(fields[0]))
