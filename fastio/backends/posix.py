"""``posix``: pread and pwrite on a few threads, through the page cache.

Where io_uring is forbidden, it reads large files that are not cached past the page cache, which halves the load time
of a state dict.
"""

from __future__ import annotations

from fastio import config
from fastio.backends import _page_cache, _past_cache
from fastio.errors import RefusedError
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest, is_resident

# Bytes per thread: below this a second thread costs more than it saves. For reads from the disk it always does: the
# kernel reads ahead of one sequential reader, and reads ahead better with advice.
_LEAST_WRITTEN, _LEAST_READ = 4 << 20, 2 << 20
_LEAST_AHEAD, _LEAST_PAST = 1 << 20, 4 << 20
_MOST_WRITERS = 4  # the kernel lets one thread at a time write into a file; the others gather and check meanwhile
_DIRECT_THREADS = 4  # of a reader past the page cache, where they only wait; more gain nothing


class PosixTransport:
    """Threads over the page cache; checksums are computed during the transfer.

    ``past_cache``: whether large cold reads bypass the page cache. None: only where io_uring, the cheaper way to do
    that, is missing.
    """

    name = "posix"
    capabilities = Capabilities(checksums=True, rows=True)

    def __init__(self, past_cache: bool | None = None) -> None:
        self._past_cache = past_cache

    def write(self, request: WriteRequest) -> TransportResult:
        return _page_cache.write(request, min(_threads(request.size, _LEAST_WRITTEN), _MOST_WRITERS))

    def read(self, request: ReadRequest) -> TransportResult:
        if request.size < _LEAST_AHEAD or _is_resident(request):
            return _page_cache.read(request, _threads(request.size, _LEAST_READ))
        notes = tuple[str, ...]()
        if request.size >= _LEAST_PAST and not request.cached and self._reads_past_cache:
            try:
                return _past_cache.read(request, _DIRECT_THREADS)
            except RefusedError as error:
                if request.control.cancelled:
                    raise
                notes = (f"read by way of the page cache: {error}",)
        return _page_cache.read(request, cold=True)._replace(notes=notes)

    @property
    def _reads_past_cache(self) -> bool:
        if self._past_cache is None:
            try:
                _past_cache.check_ring()
                self._past_cache = False
            except RefusedError:
                self._past_cache = True
        return self._past_cache


def _is_resident(request: ReadRequest) -> bool:
    return is_resident(request.path, request.fd, request.size) if request.resident is None else request.resident


def _threads(nbytes: int, least: int) -> int:
    wanted: int = config.get("io_threads")
    return max(1, min(wanted, nbytes // least))
