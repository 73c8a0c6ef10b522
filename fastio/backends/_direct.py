"""A file opened a second time with O_DIRECT, for page-aligned staging memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from fastio.errors import RefusedError
from fastio.files import direct_io
from fastio.memory.staging_buffers import PAGE
from fastio.transports.transport import ReadRequest, WriteRequest

_NONE = -1


@contextlib.contextmanager
def direct_descriptor(request: WriteRequest | ReadRequest, wanted: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """A descriptor of the request's file with O_DIRECT, or -1 if it is not wanted or refused; a note gives the reason.

    Raises TransferError.
    """
    access = os.O_RDWR if isinstance(request, WriteRequest) else os.O_RDONLY
    descriptor = direct_io.DirectDescriptor(request.path, request.fd, access)
    with contextlib.closing(descriptor):
        yield _opened(descriptor, request) if wanted else (_NONE, ())


def _opened(descriptor: direct_io.DirectDescriptor, request: WriteRequest | ReadRequest) -> tuple[int, tuple[str, ...]]:
    try:
        needed = direct_io.alignment(request.path, request.fd)
        if needed > PAGE:
            raise RefusedError(
                f"direct I/O there needs memory and offsets aligned to {needed} bytes, staging has {PAGE}"
            )
        return descriptor.open(), ()
    except RefusedError as error:
        return _NONE, (f"through the page cache: {error}",)
