"""``pinned``: device memory through pinned staging buffers, by native threads.

Each thread has staging memory and streams of its own (``native/transfer/staged.hpp``). It reads a window of the file,
checks it, and starts its copy to the device; or it copies a window from the device, computes its checksum and writes
it, while the copy of its next window runs. The staging memory is bounded, whatever the size of the transfer.

The host computes the checksums, though a device could (:meth:`fastio.devices.Accelerator.crc32_of_ranges`): they are
those of the staged bytes, which are written even if the tensor has changed meanwhile.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import torch

from fastio import config, devices
from fastio._native import staged_read, staged_write
from fastio.backends import _files, _memory
from fastio.devices import copy_errors
from fastio.errors import RefusedError, ToolUnavailableError
from fastio.files import direct_io
from fastio.memory.staging_buffers import PAGE, Lease, StagingRing
from fastio.transports.extent_rows import total_nbytes
from fastio.transports.transport import Capabilities, ReadRequest, TransportResult, WriteRequest

# Small windows stay in the processor's cache until the device has read them.
_WINDOW, _LEAST_WINDOW = 2 << 20, 512 << 10
_MOST_THREADS, _LEAST_PER_THREAD = 16, 1 << 20  # of one transfer
_BUFFERS = 2 * _MOST_THREADS  # so that two transfers at once have all they want: 128 MiB
# Past the page cache, threads mostly wait. A disk reads best from a deep queue, and writes best from a shallow one.
_DIRECT_READERS, _DIRECT_WRITERS = 8, 4
_POLL_SECONDS = 0.1  # between two checks whether a transfer that waits for staging memory was cancelled
_NO_FILE = -1
_HOST = -1  # the place of an extent that no device holds


class PinnedTransport:
    """Staged transfers of memory of the accelerators here, or, with ``device="cpu"``, of host memory.

    Raises ToolUnavailableError where there is no accelerator that native code can copy to.
    """

    name = "pinned"

    def __init__(self, device: str | None = None) -> None:
        self._copies = {} if device == "cpu" else _native_copies()
        self.capabilities = Capabilities(devices=frozenset(self._copies or {"cpu"}), checksums=True)
        pin_for = devices.of(next(iter(self._copies))) if self._copies else None
        self.ring = StagingRing(_BUFFERS, 2 * _WINDOW, pin_for)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        threads = min(max(config.get("io_threads"), 2), _DIRECT_WRITERS)
        # Without durability, writing into the page cache is fastest.
        return self._move(request, staged_write, request.patches, request.durable, threads)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        threads = max(config.get("io_threads"), _DIRECT_READERS)
        return self._move(request, staged_read, request.span, not request.resident, threads)

    def _move(
        self,
        request: ReadRequest | WriteRequest,
        move: Callable[..., tuple[list[int], bool]],
        patches_or_span: object,
        past_cache: bool,
        direct_threads: int,
    ) -> TransportResult:
        places = self._places(request)
        access = os.O_RDWR if isinstance(request, WriteRequest) else os.O_RDONLY
        with contextlib.closing(direct_io.DirectDescriptor(request.path, request.fd, access)) as descriptor:
            direct, notes = _opened(descriptor, request) if past_cache else (_NO_FILE, ())
            threads = config.get("io_threads") if direct == _NO_FILE else direct_threads
            with self._staging(request, threads) as (buffers, window), _files.translate_errors(request):
                checksums, refused = move(
                    request.fd,
                    direct,
                    request.size,
                    request.extents,
                    patches_or_span,
                    *places,
                    buffers,
                    window,
                    request.control,
                )
        if refused:
            notes = (*notes, "through the page cache: O_DIRECT was refused")
        return TransportResult("bounce", checksums, notes)

    def _places(self, request: ReadRequest | WriteRequest) -> tuple[list[int], int]:
        """The index of each extent's device, ``_HOST`` for host memory, and the address of the devices' copies or 0.

        Waits for all work on these devices, if the caller has not: kernels that compute a saved tensor, or that still
        use memory which torch reused for a loaded one, may be on any stream of any thread.
        """
        found = [_HOST if extent.device == "cpu" else _memory.device_of(extent) for extent in request.extents]
        used = {device for device in found if isinstance(device, torch.device)}
        kinds = {device.type for device in used}
        if len(kinds) > 1 or not kinds <= self._copies.keys():
            raise RefusedError(
                f"native code copies to {', '.join(self._copies) or 'no device'}, not to {sorted(kinds)}"
            )
        with copy_errors():
            _memory.synchronize(request)
        places = [place.index if isinstance(place, torch.device) else place for place in found]
        return places, self._copies[kinds.pop()] if kinds else 0

    @contextlib.contextmanager
    def _staging(self, request: ReadRequest | WriteRequest, threads: int) -> Iterator[tuple[list[int], int]]:
        """Staging memory for up to so many threads, one address each, and the size of a window.

        If other transfers use all of it, this waits until one of them has ended. RefusedError if it is cancelled then.
        """
        nbytes = total_nbytes(request.extents)
        threads = max(1, min(threads, _MOST_THREADS, nbytes // _LEAST_PER_THREAD))
        window = min(max(-(-nbytes // (2 * threads * PAGE)) * PAGE, _LEAST_WINDOW), _WINDOW)
        leases: list[Lease] = []
        try:
            while not leases:
                _files.stop_if_cancelled(request.control, request.path)
                leases = self.ring.lease_some(threads, _POLL_SECONDS)
            yield [lease.address for lease in leases], window
        finally:
            for lease in leases:
                lease.release()


def _native_copies() -> dict[str, int]:
    """The address of the native copies of each kind of accelerator that is here and has some."""
    found: dict[str, int] = {}
    lacking: list[ToolUnavailableError] = []
    for accelerator in devices.available():
        try:
            found[accelerator.kind] = accelerator.native_copies()
        except ToolUnavailableError as error:
            lacking.append(error)
    if not found:
        raise lacking[0] if lacking else ToolUnavailableError("pinned", *devices.of("cuda").why_unavailable())
    return found


def _opened(descriptor: direct_io.DirectDescriptor, request: WriteRequest | ReadRequest) -> tuple[int, tuple[str, ...]]:
    """The open descriptor, or -1 if O_DIRECT is refused, and a note with the reason. Raises TransferError."""
    try:
        needed = direct_io.alignment(request.path, request.fd)
        if needed > PAGE:
            raise RefusedError(
                f"direct I/O there needs memory and offsets aligned to {needed} bytes, staging has {PAGE}"
            )
        return descriptor.open(), ()
    except RefusedError as error:
        return _NO_FILE, (f"through the page cache: {error}",)
