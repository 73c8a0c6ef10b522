"""``posix``: pread and pwrite on a few threads, through the page cache. Also the way where io_uring is forbidden."""

from __future__ import annotations

from fastio import _native, config
from fastio.native_errors import named
from fastio.transport import Capabilities, Moved, ReadRequest, WriteRequest, is_resident

# Measured: a write block must stay in the processor's cache between being gathered and being copied by the kernel,
# and the huge page that a read faults in between being cleared and being filled.
_WRITE_BLOCK = 512 << 10
_READ_BLOCK = 2 << 20
# Below this a second thread costs more than it brings. For reads from the disk it always does: the kernel reads ahead
# of one that reads in order.
_LEAST_WRITTEN, _LEAST_READ = 4 << 20, 2 << 20


class PosixTransport:
    """Threads over the page cache; checksums are computed on the way."""

    name = "posix"
    capabilities = Capabilities(checksums=True)

    def write(self, request: WriteRequest) -> Moved:
        with named(request.path):
            checksums = _native.cached_write(
                request.fd,
                request.size,
                request.extents,
                request.patches,
                _WRITE_BLOCK,
                _threads(request.size, _LEAST_WRITTEN),
                request.durable,
                request.control,
            )
        return Moved("cached", checksums)

    def read(self, request: ReadRequest) -> Moved:
        with named(request.path):
            threads = _threads(request.size, _LEAST_READ)
            if threads > 1 and not _is_resident(request):
                threads = 1
            checksums = _native.cached_read(
                request.fd,
                request.size,
                request.extents,
                request.span,
                _READ_BLOCK,
                threads,
                request.control,
            )
        return Moved("cached", checksums)


def _is_resident(request: ReadRequest) -> bool:
    return is_resident(request.fd, request.size) if request.resident is None else request.resident


def _threads(nbytes: int, least: int) -> int:
    wanted: int = config.get("io_threads")
    return max(1, min(wanted, nbytes // least))
