"""Device memory straight to and from the disk: kvikio over NVIDIA's cuFile (GPUDirect Storage).

Writes hand cuFile whole pages only. It would write part of a page by reading, changing and writing back all of it,
and lose what a neighbouring extent puts into the same page at that time; so the unaligned ends of an extent, and
what lies in host memory, are written through the page cache.

kvikio reports an error of the system as text, without the errno: it becomes a RefusedError, and the tool that is
tried next meets the same error and names it.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

from fastio.backends import _files, _memory
from fastio.backends._windows import check, part, windows
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.memory import raw_memory
from fastio.memory.staging_buffers import PAGE
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

_PART = 16 << 20  # one task of kvikio's: of a part in several, one that fails would leave others at work
_IN_FLIGHT = 16
_CURE = "pip install 'fastio[gds]' for CUDA 12, or kvikio-cu13 for CUDA 13"


class GdsTransport:
    """``kvikio.CuFile`` on CUDA memory, or, with ``device="cpu"``, on host memory.

    Raises ToolUnavailableError where there is no such device or no kvikio.
    """

    name = "gds"

    def __init__(self, device: str = "cuda") -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise ToolUnavailableError(self.name, *_memory.why_no_cuda())
        self._device = device
        self._kvikio = _Kvikio()
        self.capabilities = Capabilities(devices=frozenset({device}), direct=True)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.status(request)
        _memory.synchronize(request.extents)
        with _Transfers(self._kvikio, request) as transfers:
            for extent in _parts(request):
                ends, body = _cut(extent) if self._is_far(extent) else ([extent], None)
                if body is not None:
                    transfers.start(body)
                for end in ends:
                    _files.stop_if_cancelled(request.control, request.path)
                    memory = _memory.tensor(end).cpu().numpy().data
                    _files.write_all(request.path, request.fd, memory, end.offset)
                    request.control.advance(end.nbytes)
            transfers.finish()
        return self._kvikio.moved(transfers)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        check(request)
        _files.check_length(request)
        _memory.synchronize(request.extents)
        with _Transfers(self._kvikio, request) as transfers:
            for extent in _parts(request):
                if self._is_far(extent):
                    transfers.start(extent)
                else:
                    _files.stop_if_cancelled(request.control, request.path)
                    memory = raw_memory.view(extent.address, extent.nbytes)
                    _files.read_all(request.path, request.fd, memory, extent.offset, extent.name)
                    request.control.advance(extent.nbytes)
            transfers.finish()
        return self._kvikio.moved(transfers)

    def _is_far(self, extent: Extent) -> bool:
        return torch.device(extent.device).type == self._device


class _Kvikio:
    """The library, and what it says of itself. kvikio >= 25.4."""

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("kvikio")
            self._defaults: Any = importlib.import_module("kvikio.defaults")
            self._driver: Any = importlib.import_module("kvikio.cufile_driver")
        except Exception as error:  # it loads the libraries of CUDA while it is imported, and fails in their ways
            reason = f"kvikio does not import: {type(error).__name__}: {error}"
            raise ToolUnavailableError("gds", reason, _CURE) from error
        self._opening = threading.Lock()

    def open(self, path: str, flags: str) -> Any:
        """A CuFile. With GDS at hand, kvikio may not fall back to POSIX for this file without saying so."""
        with contextlib.ExitStack() as settings:
            settings.enter_context(self._opening)  # the mode is the process's: two at a time could leave it changed
            if not self._why_bounced():
                settings.enter_context(self._defaults.set("compat_mode", self._library.CompatMode.OFF))
            return self._library.CuFile(path, flags)

    def moved(self, transfers: _Transfers) -> TransportResult:
        """The way that bytes took, and why it was not the best one for all."""
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
        if self._defaults.is_compat_mode_preferred():
            return "kvikio is in its compatibility mode (no cuFile here, or KVIKIO_COMPAT_MODE=ON)"
        if not self._driver.properties.is_gds_available:
            return "the nvidia-fs driver is not loaded, so cuFile copies through host memory"
        return ""


class _Transfers:
    """A file open in kvikio, and a bounded number of transfers under way. Left only when none is."""

    def __init__(self, kvikio: _Kvikio, request: WriteRequest | ReadRequest) -> None:
        self._request = request
        self._operation = "write" if isinstance(request, WriteRequest) else "read"
        self._under_way: deque[tuple[Extent, Any]] = deque()
        self.sizes: list[int] = []  # of what was handed to kvikio, in bytes
        with self._refusals():
            self._file = kvikio.open(f"/proc/self/fd/{request.fd}", "r+" if self._operation == "write" else "r")

    def __enter__(self) -> _Transfers:
        return self

    def __exit__(self, *_: object) -> None:
        for _extent, future in self._under_way:  # the memory must not go away under one of them
            with contextlib.suppress(Exception):
                future.get()
        with self._refusals():
            self._file.close()

    def start(self, extent: Extent) -> None:
        """Begin to move all of an extent, when there is room."""
        while len(self._under_way) >= _IN_FLIGHT:
            self._finish_one()
        _files.stop_if_cancelled(self._request.control, self._request.path)
        self._under_way.append((extent, self._submit(extent)))

    def finish(self) -> None:
        """Wait until everything that was begun is there, whole."""
        while self._under_way:
            self._finish_one()

    def _finish_one(self) -> None:
        extent, future = self._under_way.popleft()  # a future gives its result once
        with self._refusals():
            count: int = future.get()
        if count <= 0:
            raise TransferError(errno.EIO, self._operation, self._request.path, extent.offset)
        self._request.control.advance(count)
        if count < extent.nbytes:
            rest = _between(extent, extent.offset + count, extent.offset + extent.nbytes)
            self._under_way.appendleft((rest, self._submit(rest)))

    def _submit(self, extent: Extent) -> Any:
        on_host = extent.device == "cpu"
        self.sizes.append(extent.nbytes)
        memory = (raw_memory.view if on_host else raw_memory.CudaBytes)(extent.address, extent.nbytes)
        with self._refusals():
            move = self._file.pwrite if self._operation == "write" else self._file.pread
            return move(memory, extent.nbytes, extent.offset, max(extent.nbytes, 1))

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            raise RefusedError(f"{self._request.path}: kvikio could not {self._operation}: {error}") from error


def _parts(request: WriteRequest | ReadRequest) -> Iterator[Extent]:
    for window in windows(request.extents, _PART):
        for piece in window.pieces:
            yield part(request.extents, piece)


def _cut(extent: Extent) -> tuple[list[Extent], Extent | None]:
    """The unaligned ends of an extent, and the whole pages of the file between them, if there are any."""
    end = extent.offset + extent.nbytes
    low, high = (extent.offset + PAGE - 1) // PAGE * PAGE, end // PAGE * PAGE
    if low >= high:
        return [extent], None
    cuts = [_between(extent, *ends) for ends in ((extent.offset, low), (low, high), (high, end))]
    return [cut for cut in (cuts[0], cuts[2]) if cut.nbytes], cuts[1]


def _between(extent: Extent, low: int, high: int) -> Extent:
    return extent._replace(offset=low, nbytes=high - low, address=extent.address + low - extent.offset)
