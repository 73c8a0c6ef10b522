"""``pinned``: device memory through a ring of pinned staging buffers; copies on a side stream overlap with disk I/O.

A save copies device → staging, computes the checksums there, and writes. A load reads, computes the checksums, and
copies staging → device. The ring bounds the staging memory, whatever the size of the transfer.

The host computes the checksums, though a device could (:meth:`fastio.devices.Accelerator.crc32_of_ranges`): they are
those of the staged bytes, which are written even if the tensor has changed meanwhile.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import Future, ThreadPoolExecutor

from fastio.backends import _files
from fastio.backends._checksums import Checksums
from fastio.backends._copies import Copies, DeviceCopies
from fastio.backends._direct import DirectFile
from fastio.backends._pipeline import Pipeline, Wait
from fastio.backends._windows import Window, check, part, windows
from fastio.memory.staging_buffers import PAGE, Lease, StagingRing
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

_BUFFERS = 4
_BUFFER_BYTES = 8 << 20
_WRITERS = 2  # disks write best from a shallow queue, and read best from a deep one


class PinnedTransport:
    """Staged transfers of an accelerator's memory, or of host memory with :class:`ThreadCopies`.

    Raises ToolUnavailableError where that kind of copy does not work.
    """

    name = "pinned"

    def __init__(self, copies: type[Copies] = DeviceCopies) -> None:
        self.capabilities = Capabilities(devices=copies.kinds(), checksums=True)
        self.ring = StagingRing(_BUFFERS, _BUFFER_BYTES, copies.pin_for())
        self._copies = copies

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        checksums = Checksums(request.extents, request.patches)
        copies = self._copies()
        writers = ThreadPoolExecutor(_WRITERS, thread_name_prefix="fastio-pinned")
        # Without durability, writing into the page cache is fastest.
        with DirectFile(request, direct=request.durable) as file:

            def gather(window: Window, buffer: Lease) -> Wait:
                begin, end = _whole_pages(window, request.size)
                at = begin
                for piece in window.pieces:
                    _zero(buffer, at - begin, piece.offset - begin)
                    copies.to_host(buffer.address + piece.offset - begin, part(request.extents, piece))
                    at = piece.end
                _zero(buffer, at - begin, end - begin)
                return copies.mark()

            def store(window: Window, buffer: Lease) -> Wait:
                begin, end = _whole_pages(window, request.size)
                checksums.take(window, begin, buffer)
                written: Future[None] = writers.submit(file.write, buffer.view[: end - begin], begin)
                return written.result

            def settle() -> None:
                writers.shutdown(wait=True)
                copies.close()

            pipeline = Pipeline(self.ring, request.control, request.path, ahead=1)
            pipeline.run(windows(request.extents, _BUFFER_BYTES), gather, store, settle)
        return TransportResult("bounce", checksums.result(), file.notes)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        checksums = Checksums(request.extents)
        copies = self._copies()
        readers = ThreadPoolExecutor(_BUFFERS, thread_name_prefix="fastio-pinned")
        with DirectFile(request, direct=not request.resident) as file:

            def fetch(window: Window, buffer: Lease) -> Wait:
                begin, _ = _whole_pages(window, request.size)
                name = request.extents[window.pieces[0].extent].name
                return readers.submit(file.read, buffer.view, window.end - begin, begin, name).result

            def scatter(window: Window, buffer: Lease) -> Wait:
                begin, _ = _whole_pages(window, request.size)
                for target in _targets(request, window):
                    copies.from_host(target, buffer.address + target.offset - begin)
                checksums.take(window, begin, buffer)
                return copies.mark()

            def settle() -> None:
                readers.shutdown(wait=True)
                copies.close()

            pipeline = Pipeline(self.ring, request.control, request.path, ahead=_BUFFERS)
            pipeline.run(windows(request.extents, _BUFFER_BYTES), fetch, scatter, settle)
        return TransportResult("bounce", checksums.result(), file.notes)


def _whole_pages(window: Window, size: int) -> tuple[int, int]:
    """The pages that hold a window, in a file of ``size`` bytes; they hold no byte of another window."""
    return window.begin // PAGE * PAGE, min((window.end + PAGE - 1) // PAGE * PAGE, size)


def _zero(buffer: Lease, begin: int, end: int) -> None:
    ctypes.memset(buffer.address + begin, 0, end - begin)


def _targets(request: ReadRequest, window: Window) -> list[Extent]:
    """The memory that a window fills. With a span it is one extent, which includes the bytes between extents."""
    parts = [part(request.extents, piece) for piece in window.pieces]
    if request.span is None:
        return parts
    address = request.span.address + window.begin - request.span.offset
    return [Extent(window.begin, window.end - window.begin, address, False, parts[0].device, parts[0].owner)]
