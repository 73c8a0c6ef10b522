"""What every transport that loads must do, as a class of tests."""

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
from fastio.errors import CorruptFileError, RefusedError, TransferError
from fastio.testing.layouts import MIB, PAGE, Layout, Run, layouts
from fastio.transports import registry
from fastio.transports.transport import LOAD, SAVE, Extent, ReadRequest, Transport, TransportResult

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
    """The transport that ``make`` returns, made once."""
    return make()


class LoadContract:
    """What every transport that loads must do. A deriving class sets ``make``.

    ``make`` is called without arguments and once, as the registry does it: all tests share the transport, as all
    threads of a process do. ``device`` is where the extents' memory lies, as torch names it. Files are made in the
    current folder: its filesystem is the one that is tested.
    """

    make: ClassVar[Callable[[], Transport]]
    device: ClassVar[str] = "cpu"
    computes_checksums: ClassVar[bool] = False

    @pytest.fixture
    def transport(self) -> Transport:
        return made(type(self).make)

    def preamble(self, nbytes: int) -> bytes:
        """What a file must start with if ``nbytes`` of payload follow; its own length never changes."""
        return b""

    def start(self) -> int:
        """Offset of the first byte that may lie in an extent."""
        return len(self.preamble(0))

    @contextmanager
    def file(self, size: int, data: npt.NDArray[np.uint8] | None = None) -> Iterator[tuple[str, int]]:
        """The path and descriptor of a file, open for reading and writing.

        It holds the preamble and ``data``, or else ``size`` allocated bytes of zeros.
        """
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
        """Check a result against the capabilities; ``data`` is the file's content, None to compare no checksums."""
        assert moved.route in ROUTES, f"route {moved.route!r}, expected one of {sorted(ROUTES)}"
        assert all(moved.notes), "a note is empty"
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
        """Check the progress: the bytes of the extents, and of the gaps where the transport moves them."""
        assert layout.total <= control.done <= layout.size

    def test_name_and_capabilities(self, transport: Transport) -> None:
        assert isinstance(transport, Transport)
        can = transport.capabilities
        assert can.operations <= {SAVE, LOAD}
        assert can.operations
        assert self.device in can.devices
        assert can.checksums == self.computes_checksums, "derive from ChecksumContract if it computes checksums"
        assert transport.name in registry.names(), "no installed entry point has the transport's name"

    @examples
    @given(data=st.data())
    def test_load_fills_each_extent_and_nothing_beside_it(self, transport: Transport, data: st.DataObject) -> None:
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
    def test_load_fills_the_extents_of_a_span(self, transport: Transport, data: st.DataObject) -> None:
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
            assert got[: span.nbytes] == whole[span.offset : span.offset + span.nbytes], "a byte in a gap is wrong"
        memory.check_guards()
        self.check_result(transport, moved, extents, whole)
        self.check_done(request.control, layout)

    def test_load_without_extents_succeeds(self, transport: Transport) -> None:
        with self.file(0, np.zeros(10, np.uint8)) as (path, fd):
            size = os.fstat(fd).st_size
            self.check_result(transport, transport.read(ReadRequest(path, fd, size, [])), [], None)

    @pytest.mark.parametrize("spanned", [False, True])
    @pytest.mark.parametrize("resident", [False, True])
    @pytest.mark.parametrize("left", [0, 1, PAGE, 5 * MIB + 17])
    def test_load_of_a_truncated_file_is_a_corrupt_file_error(
        self, transport: Transport, left: int, resident: bool, spanned: bool
    ) -> None:
        layout = Layout([Run(0, 3 * MIB), Run(100, 3 * MIB)], start=self.start())
        contents = layout.noise(layout.size - layout.start)
        with self.file(layout.size, contents) as (path, fd):
            os.ftruncate(fd, layout.start + left)
            extents, span = layout.mirror(self.device)[:2] if spanned else (layout.place(self.device)[0], None)
            with pytest.raises(CorruptFileError) as caught:
                transport.read(ReadRequest(path, fd, layout.size, extents, span, resident))
        assert path in str(caught.value)
        assert caught.value.record == f"run {left >= 3 * MIB:d}"  # the tensor that is cut

    def test_load_from_a_closed_descriptor_is_ebadf(self, transport: Transport) -> None:
        layout = Layout([Run(0, 10000)], start=self.start())
        fd = self.closed()
        with pytest.raises(TransferError) as caught:
            transport.read(ReadRequest("closed.file", fd, layout.size, layout.place(self.device)[0]))
        assert caught.value.errno == errno.EBADF
        assert caught.value.filename == "closed.file"

    def test_load_rejects_extents_outside_the_file(self, transport: Transport) -> None:
        layout = Layout([Run(0, 10000)], start=self.start())
        contents = layout.noise(layout.size - layout.start)
        extents, memories = layout.place(self.device)
        with self.file(layout.size, contents) as (path, fd), pytest.raises((RefusedError, CorruptFileError)):
            transport.read(ReadRequest(path, fd, layout.size - 1, extents))
        memories[0].check_guards()

    def test_cancelled_load_raises_refused_error(self, transport: Transport) -> None:
        layout = Layout([Run(0, 64 * MIB)], start=self.start())
        with self.file(layout.size, np.zeros(layout.size - layout.start, np.uint8)) as (path, fd):
            request = ReadRequest(path, fd, layout.size, layout.place(self.device)[0])
            request.control.cancel()
            with pytest.raises(RefusedError):
                transport.read(request)
        assert request.control.done < layout.total

    def test_loads_beyond_four_gibibytes(self, transport: Transport) -> None:
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

    def test_leaks_no_descriptor_and_no_thread(self, transport: Transport) -> None:
        self.test_load_without_extents_succeeds(transport)
        self.test_four_threads_load_one_file(transport)
        before = self.descriptors_and_threads()
        self.test_four_threads_load_one_file(transport)
        for _ in range(2):
            self.test_cancelled_load_raises_refused_error(transport)
            self.test_load_of_a_truncated_file_is_a_corrupt_file_error(transport, 5 * MIB + 17, False, False)
        if SAVE in transport.capabilities.operations:
            self.saves_something(transport)
        assert self.descriptors_and_threads() == before

    def descriptors_and_threads(self) -> tuple[int, int]:
        gc.collect()
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    def saves_something(self, transport: Transport) -> None:
        """Save a few files, with and without an error."""
