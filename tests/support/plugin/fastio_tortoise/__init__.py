"""A plug-in of fastio: a name, capabilities and the two methods of ``fastio.transports.transport.Transport``."""

from __future__ import annotations

import builtins
import ctypes
import errno
import os
from typing import Any

from fastio.errors import CorruptFileError, RefusedError, ToolUnavailableError, TransferError
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest


class TortoiseTransport:
    """Moves each extent by ``pwrite`` and ``preadv``, one after the other."""

    name = "tortoise"
    capabilities = Capabilities()

    def write(self, request: WriteRequest) -> TransportResult:
        for extent in request.extents:
            memory = memoryview((ctypes.c_ubyte * extent.nbytes).from_address(extent.address)).cast("B")
            done = 0
            while done < extent.nbytes:
                self._check(request, extent)
                try:
                    done += os.pwrite(request.fd, memory[done:], extent.offset + done)
                except OSError as error:
                    raise TransferError(error.errno or 0, "write", request.path, extent.offset + done) from error
            request.control.advance(done)
        return TransportResult("cached")

    def read(self, request: ReadRequest) -> TransportResult:
        for extent in request.extents:
            memory = memoryview((ctypes.c_ubyte * extent.nbytes).from_address(extent.address)).cast("B")
            done = 0
            while done < extent.nbytes:
                self._check(request, extent)
                try:
                    count = os.preadv(request.fd, [memory[done:]], extent.offset + done)
                except OSError as error:
                    raise TransferError(error.errno or 0, "read", request.path, extent.offset + done) from error
                if count == 0:
                    raise CorruptFileError(request.path, extent.name, f"ends at byte {extent.offset + done}")
                done += count
            request.control.advance(done)
        return TransportResult("cached")

    def _check(self, request: WriteRequest | ReadRequest, extent: Extent) -> None:
        if request.control.cancelled:
            raise RefusedError(f"{request.path}: cancelled")
        if extent.offset + extent.nbytes > request.size:
            raise RefusedError(f"{request.path}: {extent.name!r} lies outside the file's {request.size} bytes")


class HareTransport:
    """A transport that is unavailable, with a reason and a cure."""

    def __init__(self) -> None:
        raise ToolUnavailableError("hare", "it is asleep", "wake it")


class MuleTransport(TortoiseTransport):
    """A transport that fails as ``MULE`` says: by the exception or the result that it names."""

    name = "mule"
    capabilities = Capabilities()

    def __init__(self) -> None:
        if "MULE" not in os.environ:
            raise ToolUnavailableError("mule", "MULE is not set", "set MULE")

    @property
    def _failure(self) -> str:
        return os.environ["MULE"]

    def write(self, request: WriteRequest) -> TransportResult:
        super().write(request)
        return self._fail(request)

    def read(self, request: ReadRequest) -> TransportResult:
        super().read(request)
        return self._fail(request)

    def _fail(self, request: WriteRequest | ReadRequest) -> Any:
        if self._failure in ("EINVAL", "EIO"):
            raise TransferError(getattr(errno, self._failure), "kicking", request.path)
        if self._failure == "OSError":
            raise OSError(errno.EIO, "it kicked")
        if self._failure == "CorruptFileError":
            raise CorruptFileError(request.path, None, "it is chewed up")
        if self._failure == "checksums":
            return TransportResult("cached", [0] * (len(request.extents) + 1))
        if self._failure == "None":
            return None
        raise getattr(builtins, self._failure)(f"it bolted from {request.path}")
