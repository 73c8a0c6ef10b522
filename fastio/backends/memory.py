"""``memory``: the reference transport of the tests, as simple as possible; it shares no code with the others."""

from __future__ import annotations

import ctypes
import errno
import os
import zlib

from fastio.errors import CorruptFileError, RefusedError, TransferError
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest

_STEP = 1 << 20


class MemoryTransport:
    """Builds the file in memory, then writes it; reads each extent by itself. Never picked automatically.

    A write needs extra memory for all bytes from the first extent's begin to the last one's end.
    """

    name = "memory"
    capabilities = Capabilities(checksums=True, automatic=False)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        _check(request)
        if not request.extents:
            return TransportResult("cached", [])
        start = request.extents[0].offset
        image = bytearray(request.extents[-1].offset + request.extents[-1].nbytes - start)
        for extent in request.extents:
            at = extent.offset - start
            image[at : at + extent.nbytes] = ctypes.string_at(extent.address, extent.nbytes)
        for patch in request.patches:
            described = request.extents[patch.extent]
            at = described.offset - start
            value = zlib.crc32(image[at : at + described.nbytes])
            image[patch.offset - start : patch.offset - start + 4] = value.to_bytes(4, "little")
        checksums = []
        for extent in request.extents:
            at = extent.offset - start
            checksums.append(zlib.crc32(image[at : at + extent.nbytes]) if extent.checksum else 0)
        done = 0
        while done < len(image):
            if request.control.cancelled:
                raise RefusedError(f"{request.path}: the transfer was cancelled")
            try:
                count = os.pwrite(request.fd, image[done : done + _STEP], start + done)
            except OSError as error:
                raise TransferError(error.errno or errno.EIO, "write", request.path, start + done) from error
            if count == 0:
                raise TransferError(errno.EIO, "write", request.path, start + done)
            request.control.advance(count)
            done += count
        return TransportResult("cached", checksums)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        _check(request)
        checksums = []
        for extent in request.extents:
            checksum = 0
            done = 0
            while done < extent.nbytes:
                if request.control.cancelled:
                    raise RefusedError(f"{request.path}: the transfer was cancelled")
                at = extent.offset + done
                try:
                    data = os.pread(request.fd, min(_STEP, extent.nbytes - done), at)
                except OSError as error:
                    raise TransferError(error.errno or errno.EIO, "read", request.path, at) from error
                if not data:
                    problem = f"the file ends at byte {at}, expected at least {extent.offset + extent.nbytes}"
                    raise CorruptFileError(request.path, extent.name or None, problem)
                ctypes.memmove(extent.address + done, data, len(data))
                checksum = zlib.crc32(data, checksum)
                request.control.advance(len(data))
                done += len(data)
            checksums.append(checksum if extent.checksum else 0)
        return TransportResult("cached", checksums)


def _check(request: WriteRequest | ReadRequest) -> None:
    for extent in request.extents:
        if extent.offset + extent.nbytes > request.size:
            raise RefusedError(f"{request.path}: {extent.name!r} lies outside the file's {request.size} bytes")
