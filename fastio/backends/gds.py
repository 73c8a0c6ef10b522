"""``gds``: device memory directly to and from the disk, by kvikio over NVIDIA's cuFile (GPUDirect Storage).

Fastensor's way past the CPU and host memory (section 3.1, figure 3).

Extents in host memory go through the page cache. cuFile writes part of a page by reading, changing and writing back
the page, which would lose bytes that are written to the same page at that time. So the unaligned ends of extents are
written last, and in each page one after the other.

kvikio reports a system error as text, without the errno. It becomes a RefusedError; the next tool then meets the same
error and reports its errno.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import threading
from collections import deque
from typing import Any

import torch

from fastio import devices
from fastio.backends import _files, _memory, _page_cache
from fastio.backends._parts import between, check, parts
from fastio.devices import cuda_extras
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.files.full_write import write_all
from fastio.memory import raw_memory
from fastio.memory.staging_buffers import PAGE
from fastio.runtime.handled_errors import HandledErrors
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

_PART = 16 << 20  # one kvikio task per part: with several, the others would still run after one fails
_IN_FLIGHT = 16
_THREADS = 8  # of kvikio: each runs one part at a time


class GdsTransport:
    """``kvikio.CuFile`` on memory of the accelerators that it reaches, or, with ``device="cpu"``, on host memory.

    ``device`` is a type of device; None: all types that are here. Raises ToolUnavailableError without such a device or
    without kvikio.
    """

    name = "gds"

    def __init__(self, device: str | None = None) -> None:
        kinds = {a.kind for a in devices.available() if a.has_kvikio and device in (None, a.kind)}
        if device == "cpu":
            kinds = {device}
        if not kinds:
            raise ToolUnavailableError(self.name, *devices.of(device or "cuda").why_unavailable())
        self._kvikio = _Kvikio()
        self.capabilities = Capabilities(devices=frozenset(kinds), direct=self._kvikio.is_direct)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.status(request)
        _memory.synchronize(request)
        with _Transfers(self._kvikio, request) as transfers:
            ends: list[Extent] = []
            for _, part in parts(request.extents, _PART):
                if self._is_on_device(part):
                    body, of_part = _cut(part)
                    ends += of_part
                    if body is not None:
                        transfers.start(body)
                else:
                    _files.stop_if_cancelled(request.control, request.path)
                    write_all(request.path, request.fd, raw_memory.view(part.address, part.nbytes), part.offset)
                    request.control.advance(part.nbytes)
            transfers.finish()
            last_page = -1
            for end in ends:
                if end.offset // PAGE == last_page:
                    transfers.finish()
                transfers.start(end)
                last_page = (end.offset + end.nbytes - 1) // PAGE
            transfers.finish()
        return self._kvikio.moved(transfers)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        _memory.synchronize(request)
        with _Transfers(self._kvikio, request) as transfers:
            for _, part in parts(request.extents, _PART):
                if self._is_on_device(part):
                    transfers.start(part)
                else:
                    on_host = [part._replace(checksum=False)]
                    path, fd, size, control = request.path, request.fd, request.size, request.control
                    _page_cache.read(ReadRequest(path, fd, size, on_host, control=control))
            transfers.finish()
        return self._kvikio.moved(transfers)

    def _is_on_device(self, extent: Extent) -> bool:
        return torch.device(extent.device).type in self.capabilities.devices


class _Kvikio:
    """The kvikio library (>= 25.4) and its settings."""

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("kvikio")
            self._defaults: Any = importlib.import_module("kvikio.defaults")
            self._driver: Any = importlib.import_module("kvikio.cufile_driver")
        except Exception as error:  # importing loads CUDA's libraries, which may raise anything
            reason = f"kvikio does not import: {type(error).__name__}: {error}"
            raise ToolUnavailableError("gds", reason, cuda_extras.cure("gds")) from error
        self._opening = threading.Lock()
        # kvikio's default is one thread. The setting is process-wide: what the user chose stays. A user who wants one
        # thread sets KVIKIO_NTHREADS=1, because kvikio does not tell a 1 that was set from its default.
        if "KVIKIO_NTHREADS" not in os.environ and self._defaults.get("num_threads") == 1:
            self._defaults.set("num_threads", _THREADS)

    @property
    def is_direct(self) -> bool:
        """Whether cuFile is to move the bytes, and not kvikio's own copies through host memory."""
        return not self._defaults.is_compat_mode_preferred()

    def open(self, path: str, flags: str) -> Any:
        """Returns a CuFile. Where GDS is available, kvikio must not silently fall back to POSIX for this file."""
        with contextlib.ExitStack() as settings:
            settings.enter_context(self._opening)  # the mode is process-wide: two at once could leave it changed
            if not self._why_bounced():
                settings.enter_context(self._defaults.set("compat_mode", self._library.CompatMode.OFF))
            return self._library.CuFile(path, flags)

    def moved(self, transfers: _Transfers) -> TransportResult:
        """The route that the bytes took, with the reason where some did not take the best one."""
        why = self._why_bounced()
        if why:
            return TransportResult("bounce", notes=(why,))
        least = self._defaults.get("gds_threshold")
        small = sum(nbytes for nbytes in transfers.sizes if nbytes < least)
        if not small:
            return TransportResult("gds")
        note = f"{small} bytes went through host memory, in parts of less than kvikio's gds_threshold of {least} bytes"
        return TransportResult("gds" if any(nbytes >= least for nbytes in transfers.sizes) else "bounce", notes=(note,))

    def _why_bounced(self) -> str:
        if not self.is_direct:
            return "kvikio is in its compatibility mode (no cuFile here, or KVIKIO_COMPAT_MODE=ON)"
        if not self._driver.properties.is_gds_available:
            return "the nvidia-fs driver is not loaded, so cuFile copies through host memory"
        return ""


class _Transfers:
    """A file open in kvikio, with a bounded number of transfers in flight. Leaving the context waits for them."""

    def __init__(self, kvikio: _Kvikio, request: WriteRequest | ReadRequest) -> None:
        self._request = request
        self._operation = "write" if isinstance(request, WriteRequest) else "read"
        self._under_way: deque[tuple[Extent, Any]] = deque()
        self.sizes: list[int] = []  # bytes of each transfer
        with self._refusals():
            self._file = kvikio.open(f"/proc/self/fd/{request.fd}", "r+" if self._operation == "write" else "r")

    def __enter__(self) -> _Transfers:
        return self

    def __exit__(self, *_: object) -> None:
        for _extent, future in self._under_way:  # their memory must live until they end
            with contextlib.suppress(Exception):
                future.get()
        with self._refusals():
            self._file.close()

    def start(self, extent: Extent) -> None:
        """Start the transfer of an extent, once fewer than ``_IN_FLIGHT`` are under way."""
        while len(self._under_way) >= _IN_FLIGHT:
            self._finish_one()
        _files.stop_if_cancelled(self._request.control, self._request.path)
        self._under_way.append((extent, self._submit(extent)))

    def finish(self) -> None:
        """Wait until every transfer that was started is complete."""
        while self._under_way:
            self._finish_one()

    def _finish_one(self) -> None:
        extent, future = self._under_way.popleft()  # a future's result can be read only once
        with self._refusals():
            count: int = future.get()
        if count <= 0:
            raise TransferError(errno.EIO, self._operation, self._request.path, extent.offset)
        self._request.control.advance(count)
        if count < extent.nbytes:
            rest = between(extent, extent.offset + count, extent.offset + extent.nbytes)
            self._under_way.appendleft((rest, self._submit(rest)))

    def _submit(self, extent: Extent) -> Any:
        accelerator = devices.find(extent.device)
        memory = (accelerator.kvikio_memory if accelerator else raw_memory.view)(extent.address, extent.nbytes)
        self.sizes.append(extent.nbytes)
        with self._refusals():
            move = self._file.pwrite if self._operation == "write" else self._file.pread
            return move(memory, extent.nbytes, extent.offset, max(extent.nbytes, 1))

    def _refusals(self) -> HandledErrors[RuntimeError | OSError]:
        return HandledErrors((RuntimeError, OSError), self._refuse)

    def _refuse(self, error: Exception) -> None:
        raise RefusedError(f"{self._request.path}: kvikio could not {self._operation}: {error}") from error


def _cut(extent: Extent) -> tuple[Extent | None, list[Extent]]:
    """The whole pages of the file that an extent fills, or None, and its unaligned ends, each in one page."""
    end = extent.offset + extent.nbytes
    low, high = (extent.offset + PAGE - 1) // PAGE * PAGE, end // PAGE * PAGE
    if low > high:
        return None, [extent]
    first, body, last = (between(extent, *ends) for ends in ((extent.offset, low), (low, high), (high, end)))
    return body if body.nbytes else None, [one for one in (first, last) if one.nbytes]
