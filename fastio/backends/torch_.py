"""``torch``: ``Tensor.copy_`` between memory on any device and a block on the host, plus plain reads and writes.

For ``pt`` the caller passes the whole object to ``torch.save`` and ``torch.load`` instead (``Capabilities.whole``).

torch's own functions to read a storage from a file are unsuitable. ``UntypedStorage.from_file`` maps the file: access
to a part that another process truncated, or to an unreadable block, ends the process (SIGBUS). The others report errors
only as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import NamedTuple

import torch

from fastio import devices
from fastio._native import crc32_at, crc32_combine
from fastio.backends import _files, _memory, _page_cache
from fastio.backends._parts import check, parts
from fastio.files.full_write import write_all
from fastio.transports.transport import Capabilities, Extent, ReadRequest, TransportResult, WriteRequest

_BLOCK = 16 << 20  # each copy to or from a device has a fixed cost


class TorchTransport:
    """``Tensor.copy_`` and the page cache, for memory on any device of this torch."""

    name = "torch"

    @property
    def capabilities(self) -> Capabilities:
        """For all devices that fastio knows. To ask whether there is one would break CUDA in forked children."""
        return Capabilities(devices=devices.all_kinds() | {"cpu"}, whole=frozenset({"pt"}), checksums=True)

    def write(self, request: WriteRequest) -> TransportResult:
        """Write ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says.

        If another thread changes memory meanwhile, the file has the checksums of the bytes that it got.
        """
        if _is_on_host(request):
            return _page_cache.write(request)
        check(request)
        _memory.synchronize(request)
        checksums = [0] * len(request.extents)
        for block, window in _windows(request):
            _files.stop_if_cancelled(request.control, request.path)
            block.zero_()
            for index, part, place in window:
                place.copy_(_memory.tensor(part))
                if part.checksum:
                    checksums[index] = crc32_at(place.data_ptr(), part.nbytes, checksums[index])
            write_all(request.path, request.fd, block.numpy().data, window[0].part.offset)
            request.control.advance(sum(part.nbytes for _, part, _ in window))
        for offset, index in request.patches:
            write_all(request.path, request.fd, memoryview(checksums[index].to_bytes(4, "little")), offset)
        return TransportResult("bounce", checksums)

    def read(self, request: ReadRequest) -> TransportResult:
        """Fill the memory of ``request.extents``. Raises as :class:`fastio.transports.transport.Transport` says."""
        if _is_on_host(request):
            return _page_cache.read(request)
        check(request)
        _files.check_length(request)
        _memory.synchronize(request)
        checksums = [0] * len(request.extents)
        for _, window in _windows(request):
            staged = [part._replace(address=place.data_ptr()) for _, part, place in window]
            whole = ReadRequest(request.path, request.fd, request.size, staged, control=request.control)
            found = _page_cache.read(whole).checksums or ()
            for (index, part, place), checksum in zip(window, found, strict=True):
                _memory.tensor(part).copy_(place)
                checksums[index] = crc32_combine(checksums[index], checksum, part.nbytes)
        return TransportResult("bounce", checksums)


class _Placed(NamedTuple):
    """A part of an extent, the number of that extent, and host memory for the part."""

    number: int
    part: Extent
    place: torch.Tensor


def _windows(request: ReadRequest | WriteRequest) -> Iterator[tuple[torch.Tensor, list[_Placed]]]:
    """The parts of the extents in each 16 MiB of the file, and the memory from the first of them to the last."""
    memory = torch.empty(min(_BLOCK, request.size), dtype=torch.uint8)
    for _, window in groupby(parts(request.extents, _BLOCK), key=lambda one: one[1].offset // _BLOCK):
        some = list(window)
        begin, last = some[0][1].offset, some[-1][1]
        placed = [_Placed(index, part, memory[part.offset - begin :][: part.nbytes]) for index, part in some]
        yield memory[: last.offset + last.nbytes - begin], placed


def _is_on_host(request: ReadRequest | WriteRequest) -> bool:
    return all(extent.device == "cpu" for extent in request.extents)
