"""What every transport must do, as one class of tests. A transport's own test derives from it (see test_transports)."""

from __future__ import annotations

import errno
import fcntl
import functools
import gc
import os
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fastio._native import Control
from fastio.backends.memory import MemoryTransport
from fastio.errors import CorruptFileError, RefusedError, TransferError
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, Extent, Patch, ReadRequest, Transport, TransportResult, WriteRequest
from layouts import MIB, PAGE, Layout, Memory, Run, layouts

ROUTES = {"direct", "cached", "bounce", "gds"}
GIB = 1 << 30

examples = settings(
    max_examples=30,
    deadline=None,
    suppress_health_check=[
        HealthCheck.differing_executors,  # the same test runs for each transport
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


@functools.cache
def made(make: Callable[[], Transport]) -> Transport:
    """The one transport that ``make`` has made."""
    return make()


class LoadContract:
    """What every transport that loads must do. A deriving class gives ``make``, and says where it differs.

    ``make`` is called once, as by the registry: all tests share the transport, as all threads of a process do.
    ``device`` is where the extents' memory lies.
    """

    make: ClassVar[Callable[[], Transport]]
    device = "cpu"

    @pytest.fixture
    def transport(self) -> Transport:
        return made(type(self).make)

    def preamble(self, nbytes: int) -> bytes:
        """What a file must start with, if ``nbytes`` of anything follow; always of the same length."""
        return b""

    def start(self) -> int:
        """Bytes of a file before the first extent may start."""
        return len(self.preamble(0))

    @contextmanager
    def file(self, size: int, data: npt.NDArray[np.uint8] | None = None) -> Iterator[tuple[str, int]]:
        """A file open for reading and writing, allocated to ``size`` or holding the preamble and ``data``."""
        with tempfile.TemporaryDirectory(prefix="contract-", dir=os.getcwd()) as folder:
            path = str(Path(folder) / "file")
            if data is not None:
                Path(path).write_bytes(self.preamble(len(data)) + data.tobytes())
            fd = os.open(path, os.O_RDWR | os.O_CREAT)
            try:
                if data is None and size:
                    os.posix_fallocate(fd, 0, size)
                yield path, fd
            finally:
                os.close(fd)

    def closed(self) -> int:
        """A descriptor that is not open."""
        with tempfile.TemporaryFile() as file:
            fd = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, 700)
        os.close(fd)
        return fd

    def check_result(
        self, transport: Transport, moved: TransportResult, extents: Sequence[Extent], data: bytes | None
    ) -> None:
        """The result is of the kind promised; ``data`` is what the file holds."""
        assert moved.route in ROUTES
        assert all(moved.notes)
        if not transport.capabilities.checksums:
            assert moved.checksums is None
            return
        assert moved.checksums is not None
        assert len(moved.checksums) == len(extents)
        if data is not None:
            for extent, checksum in zip(extents, moved.checksums, strict=True):
                expected = zlib.crc32(data[extent.offset : extent.offset + extent.nbytes]) if extent.checksum else 0
                assert checksum == expected, extent.name

    def check_done(self, control: Control, layout: Layout) -> None:
        assert layout.total <= control.done <= layout.size

    def test_is_a_transport_that_says_what_it_does(self, transport: Transport) -> None:
        assert isinstance(transport, Transport)
        can = transport.capabilities
        assert can.operations <= {SAVE, LOAD}
        assert can.operations
        assert self.device in can.devices
        assert can.checksums == isinstance(self, ChecksumContract)
        assert transport.name in registry.names()

    @examples
    @given(data=st.data())
    def test_loads(self, transport: Transport, data: st.DataObject) -> None:
        layout = data.draw(layouts(self.start()))
        contents = layout.noise(layout.size - layout.start)
        whole = self.preamble(len(contents)) + contents.tobytes()
        with self.file(layout.size, contents) as (path, fd):
            if not layout.resident:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            extents, memories = layout.place(self.device)
            request = ReadRequest(path, fd, layout.size, extents, resident=layout.resident)
            moved = transport.read(request)
        for extent, memory in zip(extents, memories, strict=True):
            assert memory.get().tobytes() == whole[extent.offset : extent.offset + extent.nbytes], extent.name
            memory.check_guards()
        self.check_result(transport, moved, extents, whole)
        self.check_done(request.control, layout)

    @examples
    @given(data=st.data())
    def test_loads_into_a_span(self, transport: Transport, data: st.DataObject) -> None:
        layout = data.draw(layouts(self.start()))
        assume(layout.total)
        contents = layout.noise(layout.size - layout.start)
        whole = self.preamble(len(contents)) + contents.tobytes()
        extents, span, memory = layout.mirror(self.device)
        with self.file(layout.size, contents) as (path, fd):
            request = ReadRequest(path, fd, layout.size, extents, span, layout.resident)
            moved = transport.read(request)
        got = memory.get().tobytes()
        for extent in extents:
            at = extent.offset - span.offset
            assert got[at : at + extent.nbytes] == whole[extent.offset : extent.offset + extent.nbytes], extent.name
        if moved.filled_span:
            assert got[: span.nbytes] == whole[span.offset : span.offset + span.nbytes], "what lies between extents"
        memory.check_guards()
        self.check_result(transport, moved, extents, whole)
        self.check_done(request.control, layout)

    def test_loads_nothing(self, transport: Transport) -> None:
        with self.file(0, np.zeros(10, np.uint8)) as (path, fd):
            size = os.fstat(fd).st_size
            self.check_result(transport, transport.read(ReadRequest(path, fd, size, [])), [], None)

    @pytest.mark.parametrize("spanned", [False, True])
    @pytest.mark.parametrize("resident", [False, True])
    @pytest.mark.parametrize("left", [0, 1, PAGE, 5 * MIB + 17])
    def test_a_file_that_is_too_short(self, transport: Transport, left: int, resident: bool, spanned: bool) -> None:
        layout = Layout([Run(0, 3 * MIB), Run(100, 3 * MIB)], start=self.start())
        contents = layout.noise(layout.size - layout.start)
        with self.file(layout.size, contents) as (path, fd):
            os.ftruncate(fd, layout.start + left)
            extents, span = layout.mirror(self.device)[:2] if spanned else (layout.place(self.device)[0], None)
            with pytest.raises(CorruptFileError) as caught:
                transport.read(ReadRequest(path, fd, layout.size, extents, span, resident))
        assert path in str(caught.value)

    def test_loads_from_a_closed_file(self, transport: Transport) -> None:
        layout = Layout([Run(0, 10000)], start=self.start())
        fd = self.closed()
        with pytest.raises(TransferError) as caught:
            transport.read(ReadRequest("closed.file", fd, layout.size, layout.place(self.device)[0]))
        assert caught.value.errno == errno.EBADF
        assert caught.value.filename == "closed.file"

    def test_extents_outside_the_file(self, transport: Transport) -> None:
        layout = Layout([Run(0, 10000)], start=self.start())
        contents = layout.noise(layout.size - layout.start)
        extents, memories = layout.place(self.device)
        with self.file(layout.size, contents) as (path, fd), pytest.raises((RefusedError, CorruptFileError)):
            transport.read(ReadRequest(path, fd, layout.size - 1, extents))
        memories[0].check_guards()

    def test_a_cancelled_load(self, transport: Transport) -> None:
        layout = Layout([Run(0, 64 * MIB)], start=self.start())
        with self.file(layout.size, np.zeros(layout.size - layout.start, np.uint8)) as (path, fd):
            request = ReadRequest(path, fd, layout.size, layout.place(self.device)[0])
            request.control.cancel()
            with pytest.raises(RefusedError):
                transport.read(request)
        assert request.control.done < layout.total

    def test_loads_from_beyond_four_gibibytes(self, transport: Transport) -> None:
        layout = Layout([Run(5 * GIB + 123, 3 * MIB + 5), Run(7, 1000)], start=self.start())
        data = layout.noise(layout.size - layout.offsets[0])
        with self.file(0) as (path, fd):
            os.pwrite(fd, self.preamble(layout.size - layout.start), 0)
            os.pwrite(fd, data.tobytes(), layout.offsets[0])
            extents, memories = layout.place(self.device)
            moved = transport.read(ReadRequest(path, fd, layout.size, extents))
        for extent, memory in zip(extents, memories, strict=True):
            at = extent.offset - layout.offsets[0]
            assert memory.get().tobytes() == data[at : at + extent.nbytes].tobytes()
        if transport.capabilities.checksums:
            assert moved.checksums is not None
            assert list(moved.checksums) == [zlib.crc32(memory.get().tobytes()) for memory in memories]

    def test_four_threads_load_one_file(self, transport: Transport) -> None:
        layout = Layout([Run(0, 9 * MIB + 1), Run(33, 5), Run(0, 6 * MIB, PAGE)], start=self.start())
        contents = layout.noise(layout.size - layout.start)
        whole = self.preamble(len(contents)) + contents.tobytes()
        with self.file(layout.size, contents) as (path, fd):

            def load(number: int) -> None:
                for round_ in range(3):
                    extents, memories = layout.place(self.device)
                    request = ReadRequest(path, fd, layout.size, extents, resident=(number + round_) % 2 == 0)
                    transport.read(request)
                    for extent, memory in zip(extents, memories, strict=True):
                        assert memory.get().tobytes() == whole[extent.offset : extent.offset + extent.nbytes]

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(load, range(4)))

    def test_leaves_no_descriptor_and_no_thread_behind(self, transport: Transport) -> None:
        self.test_loads_nothing(transport)
        self.test_four_threads_load_one_file(transport)
        before = self.held()
        self.test_four_threads_load_one_file(transport)
        for _ in range(5):
            self.test_a_cancelled_load(transport)
            self.test_a_file_that_is_too_short(transport, 5 * MIB + 17, False, False)
        if SAVE in transport.capabilities.operations:
            self.saves_something(transport)
        assert self.held() == before

    def held(self) -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def saves_something(self, transport: Transport) -> None:
        """Write a few extents, well and in vain."""


class TransportContract(LoadContract):
    """What a transport must do that saves, too."""

    def write(self, transport: Transport, request: WriteRequest) -> TransportResult:
        """Write, and check that the file has kept its length."""
        moved = transport.write(request)
        assert os.fstat(request.fd).st_size == request.size
        return moved

    def laid(self, transport: Transport, layout: Layout) -> tuple[list[Extent], list[Patch], npt.NDArray[np.uint8]]:
        """Extents that hold something, patches if the transport puts them in, and the file that must come out."""
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
            reference = MemoryTransport().write(WriteRequest(path, fd, layout.size, on_host, patches))
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
        if isinstance(caught.value, TransferError):  # who needs a file with blocks refuses
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
        self.test_four_threads_save_a_file_each(transport)
        for _ in range(5):
            self.test_a_cancelled_save(transport)
            self.test_a_full_disk(transport)
            self.test_saves_nothing(transport)
        self.test_four_threads_save_a_file_each(transport)


class ChecksumContract(TransportContract):
    """What a transport must do that saves and computes checksums, too. The hypothesis tests above put patches in."""

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
