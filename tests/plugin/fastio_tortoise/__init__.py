"""A plug-in of fastio: it needs the two methods of ``fastio.transport.Transport``, a name, and what it can do."""

from __future__ import annotations

import ctypes
import os

from fastio.errors import CorruptFileError, RefusedError, ToolUnavailableError, TransferError
from fastio.transport import Capabilities, Moved, ReadRequest, WriteRequest


class TortoiseTransport:
    """One plain system call after the other."""

    name = "tortoise"
    capabilities = Capabilities()

    def write(self, request: WriteRequest) -> Moved:
        for extent in request.extents:
            memory = memoryview((ctypes.c_ubyte * extent.nbytes).from_address(extent.address)).cast("B")
            done = 0
            while done < extent.nbytes:
                self._look(request)
                try:
                    done += os.pwrite(request.fd, memory[done:], extent.offset + done)
                except OSError as error:
                    raise TransferError(error.errno or 0, "write", request.path, extent.offset + done) from error
            request.control.advance(done)
        return Moved("cached")

    def read(self, request: ReadRequest) -> Moved:
        for extent in request.extents:
            memory = memoryview((ctypes.c_ubyte * extent.nbytes).from_address(extent.address)).cast("B")
            done = 0
            while done < extent.nbytes:
                self._look(request)
                try:
                    count = os.preadv(request.fd, [memory[done:]], extent.offset + done)
                except OSError as error:
                    raise TransferError(error.errno or 0, "read", request.path, extent.offset + done) from error
                if count == 0:
                    raise CorruptFileError(request.path, extent.name, f"ends at byte {extent.offset + done}")
                done += count
            request.control.advance(done)
        return Moved("cached")

    def _look(self, request: WriteRequest | ReadRequest) -> None:
        if request.control.cancelled:
            raise RefusedError("cancelled")


class HareTransport:
    """One that cannot be used here, and says why."""

    def __init__(self) -> None:
        raise ToolUnavailableError("hare", "it is asleep", "wake it")
