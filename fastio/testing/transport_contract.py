"""What every transport that saves and loads must do, as a class of tests."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given

from fastio.errors import RefusedError, TransferError
from fastio.testing.layouts import MIB, PAGE, Layout, Memory, Run, layouts
from fastio.testing.load_contract import GIB, LoadContract, examples
from fastio.transports import registry
from fastio.transports.transport import Extent, Patch, Transport, TransportResult, WriteRequest


class TransportContract(LoadContract):
    """What a transport that saves and loads must do. A deriving class sets ``make``, see :class:`LoadContract`."""

    def write(self, transport: Transport, request: WriteRequest) -> TransportResult:
        """Write, and check that the file's length is unchanged."""
        moved = transport.write(request)
        assert os.fstat(request.fd).st_size == request.size
        return moved

    def laid(self, transport: Transport, layout: Layout) -> tuple[list[Extent], list[Patch], npt.NDArray[np.uint8]]:
        """Extents with content, patches if the transport computes checksums, and the bytes of the file to expect."""
        extents, memories = layout.place(self.device, layout.noise(layout.size))
        patches: list[Patch] = []
        if transport.capabilities.checksums:
            extents, patches = layout.patches(extents)
        return extents, patches, layout.image(extents, memories, patches)

    @examples
    @given(layout=layouts())
    def test_saves_what_the_reference_saves(self, transport: Transport, layout: Layout) -> None:
        extents, patches, image = self.laid(transport, layout)
        durable = not layout.resident
        with self.file(layout.size) as (path, fd):
            request = WriteRequest(path, fd, layout.size, extents, patches, durable)
            moved = self.write(transport, request)
            saved = Path(path).read_bytes()
        assert saved == image.tobytes()
        self.check_result(transport, moved, extents, saved)
        self.check_done(request.control, layout)
        on_host = layout.place("cpu", layout.noise(layout.size))[0]
        on_host = [host._replace(checksum=extent.checksum) for host, extent in zip(on_host, extents, strict=True)]
        with self.file(layout.size) as (path, fd):
            reference = registry.get("memory").write(WriteRequest(path, fd, layout.size, on_host, patches))
            assert Path(path).read_bytes() == saved
        if moved.checksums is not None:
            assert list(moved.checksums) == reference.checksums

    def test_saves_nothing(self, transport: Transport) -> None:
        with self.file(5000) as (path, fd):
            self.check_result(transport, self.write(transport, WriteRequest(path, fd, 5000, [])), [], None)
            assert Path(path).read_bytes() == bytes(5000)

    def test_saves_to_a_closed_file(self, transport: Transport) -> None:
        layout = Layout([Run(0, 10000)])
        extents = self.laid(transport, layout)[0]
        with pytest.raises(TransferError) as caught:
            transport.write(WriteRequest("closed.file", self.closed(), layout.size, extents))
        assert caught.value.errno == errno.EBADF
        assert caught.value.filename == "closed.file"

    def test_a_full_disk(self, transport: Transport) -> None:
        layout = Layout([Run(0, 20 * MIB)])
        extents = self.laid(transport, layout)[0]
        fd = os.open("/dev/full", os.O_RDWR)
        try:
            with pytest.raises((TransferError, RefusedError)) as caught:
                transport.write(WriteRequest("/dev/full", fd, layout.size, extents))
        finally:
            os.close(fd)
        if isinstance(caught.value, TransferError):  # RefusedError: the transport needs a regular file
            assert caught.value.errno == errno.ENOSPC

    def test_a_cancelled_save(self, transport: Transport) -> None:
        layout = Layout([Run(0, 64 * MIB)])
        extents, _ = layout.place(self.device)
        with self.file(layout.size) as (path, fd):
            request = WriteRequest(path, fd, layout.size, extents)
            request.control.cancel()
            with pytest.raises(RefusedError):
                transport.write(request)
        assert request.control.done < layout.total

    def test_saves_beyond_four_gibibytes(self, transport: Transport) -> None:
        layout = Layout([Run(5 * GIB + 123, 3 * MIB + 5), Run(7, 1000)])
        data = layout.noise(layout.size - layout.offsets[0])
        with self.file(0) as (path, fd):
            os.ftruncate(fd, layout.size)
            memories = [
                Memory(run.nbytes, device=self.device).put(data[offset - layout.offsets[0] :][: run.nbytes])
                for run, offset in zip(layout.runs, layout.offsets, strict=True)
            ]
            extents = [
                Extent(offset, memory.nbytes, memory.address, True, self.device, memory)
                for offset, memory in zip(layout.offsets, memories, strict=True)
            ]
            self.write(transport, WriteRequest(path, fd, layout.size, extents))
            for offset, memory in zip(layout.offsets, memories, strict=True):
                assert os.pread(fd, memory.nbytes, offset) == memory.get().tobytes()
            assert os.pread(fd, 123, 5 * GIB) == bytes(123)

    def test_four_threads_save_a_file_each(self, transport: Transport) -> None:
        def save(number: int) -> None:
            layout = Layout([Run(0, 9 * MIB + 1), Run(33, 5), Run(0, 6 * MIB, PAGE), Run(0, 64)], seed=number)
            extents, patches, image = self.laid(transport, layout)
            for durable in (True, False, True):
                with self.file(layout.size) as (path, fd):
                    self.write(transport, WriteRequest(path, fd, layout.size, extents, patches, durable))
                    assert Path(path).read_bytes() == image.tobytes()

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(save, range(4)))

    def saves_something(self, transport: Transport) -> None:
        for _ in range(2):
            self.test_a_cancelled_save(transport)
            self.test_a_full_disk(transport)
            self.test_saves_nothing(transport)
        self.test_four_threads_save_a_file_each(transport)


class ChecksumContract(TransportContract):
    """What a transport must do whose capabilities say ``checksums``: the generated saves have patches, too."""

    computes_checksums = True

    @pytest.mark.parametrize("block", [MIB, 4 * MIB, 8 * MIB, 16 * MIB])
    @pytest.mark.parametrize("before", [1, 2, 3])
    def test_a_patch_across_blocks(self, transport: Transport, block: int, before: int) -> None:
        layout = Layout([Run(0, 5000), Run(block - 5000 - before, 20, checksum=False), Run(0, 3)])
        extents, memories = layout.place(self.device, layout.noise(layout.size))
        patches = [Patch(extents[1].offset, 0)]
        image = layout.image(extents, memories, patches)
        with self.file(layout.size) as (path, fd):
            self.write(transport, WriteRequest(path, fd, layout.size, extents, patches))
            assert Path(path).read_bytes() == image.tobytes()
