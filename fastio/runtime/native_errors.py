"""Translates native errors, which have offsets but no paths, into the public ones."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from fastio.errors import CorruptFileError, RefusedError, TransferError


class NativeError(Exception):
    """A native error: a kind and its fields. :func:`translate_native_errors` keeps it inside the package."""


@contextlib.contextmanager
def translate_native_errors(path: str) -> Iterator[None]:
    """Inside, native errors become public ones that name ``path``."""
    try:
        yield
    except NativeError as error:
        raise public_error(error, path) from None


def public_error(error: NativeError, path: str) -> Exception:
    """The public error for a native one, with the path of the file."""
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
