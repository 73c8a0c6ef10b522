"""``uring``: io_uring in the native part, with O_DIRECT, past the page cache."""

from __future__ import annotations

from fastio.backends import _past_cache
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest


class UringTransport:
    """io_uring with O_DIRECT; checksums are computed during the transfer.

    Raises ToolUnavailableError where io_uring is forbidden or missing.
    """

    name = "uring"
    capabilities = Capabilities(checksums=True, direct=True, rows=True)

    def __init__(self) -> None:
        try:
            _past_cache.check_ring()
        except RefusedError as error:
            cure = "allow the io_uring system calls (kernel.io_uring_disabled=0; seccomp profile of the container)"
            raise ToolUnavailableError(self.name, str(error), cure) from None

    def write(self, request: WriteRequest) -> TransportResult:
        return _past_cache.write(request)

    def read(self, request: ReadRequest) -> TransportResult:
        return _past_cache.read(request)
