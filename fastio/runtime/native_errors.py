"""Translates native errors, which have offsets but no paths, into the public ones."""

from __future__ import annotations

from functools import partial

from fastio.errors import CorruptFileError, RefusedError, TransferError
from fastio.runtime.handled_errors import HandledErrors


class NativeError(Exception):
    """A native error: a kind and its fields. :func:`translate_native_errors` keeps it inside the package."""


def translate_native_errors(path: str) -> HandledErrors[NativeError]:
    """Inside, native errors become public ones that name ``path``."""
    return HandledErrors(NativeError, partial(_raise_public, path))


def _raise_public(path: str, error: NativeError) -> None:
    raise public_error(error, path) from None


def public_error(error: NativeError, path: str) -> Exception:
    """The public error for a native one, with the path of the file."""
    kind, *fields = error.args
    if kind == "system":
        number, operation, offset = fields
        return TransferError(number, operation, path, offset)
    if kind == "truncated":
        return CorruptFileError(path, None, f"has no byte {fields[0]}, where it promises data: it was cut short")
    if kind == "malformed":
        record, problem = fields
        cure = problem if "restore" in problem else f"{problem}; restore the file from a copy"
        return CorruptFileError(path, record.decode("utf-8", "replace") or None, cure)
    return RefusedError(str(fields[0]))


def tensors_named() -> HandledErrors[CorruptFileError]:
    """Inside, a CorruptFileError calls what it names a tensor, and not a record: for reads of tensors by name."""
    return HandledErrors(CorruptFileError, CorruptFileError.name_as_tensor)
