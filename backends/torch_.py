"""torch's way: the file is mapped, a window at a time, and tensors are copied between the mapping and their memory.

For ``pt`` the caller hands the whole object to ``torch.save`` and ``torch.load`` instead (``Capabilities.whole``).

``UntypedStorage.from_file`` maps from the file's first byte, needs write permission to share, and reports an error as
text. So the windows are mapped here, from the open file itself: bounded memory, and the system's own errno.
A mapping's access beyond the end of its file, or to a block that cannot be had, ends the process (SIGBUS). So the
length is checked before each window is mapped, and blocks that a write needs are allocated first.
"""

from __future__ import annotations

import mmap
import os

import torch

from fastio.backends import _files, _memory
from fastio.backends._windows import Window, check, part, windows
from fastio.errors import CorruptFileError, RefusedError
from fastio.transport import Capabilities, Extent, Moved, ReadRequest, WriteRequest

_WINDOW = 16 << 20


def _devices() -> frozenset[str]:
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return frozenset({"cpu"} | ({accelerator.type} if accelerator is not None else set()))


class TorchTransport:
    """Mapped windows and ``Tensor.copy_``, for memory on any device that torch has here."""

    name = "torch"

    def __init__(self) -> None:
        self.capabilities = Capabilities(devices=_devices(), whole=frozenset({"pt"}))

    def write(self, request: WriteRequest) -> Moved:
        """Write ``request.extents``. Raises as :class:`fastio.transport.Transport` says."""
        check(request)
        status = _files.status(request)
        if status.st_size < request.size:
            raise RefusedError(f"{request.path}: the file has {status.st_size} bytes, expected {request.size}")
        hollow = status.st_blocks * 512 < request.size
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            if hollow:
                _allocate(request, window)
            _copy(request, window, to_file=True)
            request.control.advance(window.nbytes)
        return Moved(_route(request))

    def read(self, request: ReadRequest) -> Moved:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transport.Transport` says."""
        check(request)
        for window in windows(request.extents, _WINDOW):
            _files.stop_if_cancelled(request.control, request.path)
            _files.check_length(request)
            _copy(request, window, to_file=False)
            request.control.advance(window.nbytes)
        return Moved(_route(request))


def _copy(request: WriteRequest | ReadRequest, window: Window, to_file: bool) -> None:
    start = window.begin // mmap.ALLOCATIONGRANULARITY * mmap.ALLOCATIONGRANULARITY
    # A private mapping suffices to read, and needs no write permission; torch wants its memory writable all the same.
    flags = mmap.MAP_SHARED if to_file else mmap.MAP_PRIVATE
    try:
        mapping = mmap.mmap(request.fd, window.end - start, flags, mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
    except OSError as error:
        raise _files.failure(error, "map", request.path, start) from error
    except ValueError as error:  # the file became shorter since its length was checked
        raise CorruptFileError(request.path, None, f"the file ends before byte {window.end}") from error
    mapped = torch.frombuffer(mapping, dtype=torch.uint8)
    for piece in window.pieces:
        memory = _memory.tensor(part(request.extents, piece))
        in_file = mapped[piece.offset - start : piece.end - start]
        if to_file:
            in_file.copy_(memory)
        else:
            memory.copy_(in_file)


def _allocate(request: WriteRequest, window: Window) -> None:
    try:
        os.posix_fallocate(request.fd, window.begin, window.end - window.begin)
    except OSError as error:
        raise _files.failure(error, "allocate", request.path, window.begin) from error


def _route(request: WriteRequest | ReadRequest) -> str:
    return "cached" if all(_is_host(extent) for extent in request.extents) else "bounce"


def _is_host(extent: Extent) -> bool:
    return extent.device == "cpu"
