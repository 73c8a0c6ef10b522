"""The ring of staging buffers and the ``pinned`` transport: on host memory, and on CUDA memory if there is a GPU."""

from __future__ import annotations

import errno
import functools
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from fastio.backends._copies import ThreadCopies
from hypothesis import given
from hypothesis import strategies as st

from accelerators import DEVICE
from fastio import devices
from fastio.backends._direct import DirectFile
from fastio.backends._windows import windows
from fastio.backends.pinned import PinnedTransport
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.memory.staging_buffers import HostMemory, StagingRing
from fastio.testing import ChecksumContract
from fastio.testing.layouts import MIB, PAGE, Layout, Run
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


class TestRingOverHostMemory(ChecksumContract):
    """The contract of the transport with copies on a thread instead of a CUDA stream."""

    make = functools.partial(PinnedTransport, "cpu")


@pytest.mark.gpu
class TestPinned(ChecksumContract):
    make = PinnedTransport
    device = DEVICE


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_cuda_the_tool_is_unavailable_with_a_cure() -> None:
    with pytest.raises(ToolUnavailableError) as caught:
        registry.get("pinned")
    assert "CUDA" in caught.value.reason
    assert caught.value.cure


@pytest.mark.gpu
def test_host_memory_with_pin_is_pinned() -> None:
    memory = HostMemory(8 * MIB, devices.of(DEVICE))
    assert torch.frombuffer(memory.view, dtype=torch.uint8).is_pinned()
    memory.close()


class SlowCopies(ThreadCopies):
    """Copies that start late."""

    def to_host(self, address: int, extent: Extent) -> None:
        self._copies.append(self._thread.submit(time.sleep, 0.005))
        super().to_host(address, extent)

    def from_host(self, extent: Extent, address: int) -> None:
        self._copies.append(self._thread.submit(time.sleep, 0.005))
        super().from_host(extent, address)


class BreakingCopies(ThreadCopies):
    """Copies whose third window fails while others are in flight."""

    def __init__(self) -> None:
        super().__init__()
        self._marks = 0

    def mark(self) -> Callable[[], None]:
        wait = super().mark()
        self._marks += 1
        number = self._marks

        def fail() -> None:
            wait()
            if number == 3:
                raise RefusedError("the third copy failed")

        return fail


LARGE = Layout([Run(0, 41 * MIB + 3), Run(99, 20), Run(0, 9 * MIB, PAGE)])


@pytest.fixture
def file(tmp_path: Path) -> tuple[str, int]:
    path = str(tmp_path / "file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, LARGE.size)
    return path, fd


def test_buffers_are_not_reused_while_copies_are_in_flight(file: tuple[str, int]) -> None:
    path, fd = file
    transport = PinnedTransport(SlowCopies)
    extents, memories = LARGE.place("cpu", LARGE.noise(LARGE.size))
    transport.write(WriteRequest(path, fd, LARGE.size, extents))
    assert Path(path).read_bytes() == LARGE.image(extents, memories).tobytes()
    targets, filled = LARGE.place("cpu")
    transport.read(ReadRequest(path, fd, LARGE.size, targets))
    os.close(fd)
    for memory, expected in zip(filled, memories, strict=True):
        assert np.array_equal(memory.get(), expected.get())


def test_a_failed_transfer_releases_every_buffer(file: tuple[str, int]) -> None:
    path, fd = file
    transport = PinnedTransport(BreakingCopies)
    extents, _ = LARGE.place("cpu", LARGE.noise(LARGE.size))
    with pytest.raises(RefusedError, match="third copy"):
        transport.write(WriteRequest(path, fd, LARGE.size, extents))
    assert transport.ring.leased == 0
    with pytest.raises(RefusedError, match="third copy"):
        transport.read(ReadRequest(path, fd, LARGE.size, extents))
    assert transport.ring.leased == 0
    os.close(fd)
    transport = PinnedTransport(ThreadCopies)
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(TransferError) as caught:
        transport.write(WriteRequest("/dev/full", full.fileno(), LARGE.size, extents))
    assert caught.value.errno == errno.ENOSPC
    assert transport.ring.leased == 0


def test_a_transfer_that_waits_for_buffers_can_be_cancelled(file: tuple[str, int]) -> None:
    path, fd = file
    transport = PinnedTransport(ThreadCopies)
    taken = [transport.ring.lease() for _ in range(transport.ring.count)]
    request = WriteRequest(path, fd, LARGE.size, LARGE.place("cpu")[0])
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(transport.write, request)
        request.control.cancel()
        with pytest.raises(RefusedError):
            waiting.result()
    os.close(fd)
    for lease in taken:
        assert lease is not None
        lease.release()
    assert transport.ring.leased == 0


def test_ring_never_exceeds_its_count_across_threads() -> None:
    ring = StagingRing(3, PAGE)
    out: set[int] = set()
    most = 0
    lock = threading.Lock()

    def work(_: int) -> None:
        nonlocal most
        for _round in range(50):
            lease = ring.lease(timeout=30)
            assert lease is not None
            with lock:
                assert lease.address not in out, "one buffer, two leases"
                out.add(lease.address)
                most = max(most, len(out))
            lease.view[:] = bytes(PAGE)
            with lock:
                out.remove(lease.address)
            lease.release()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert most <= 3
    assert ring.leased == 0


def test_leases_are_exclusive_aligned_and_reuse_buffers() -> None:
    ring = StagingRing(1, 2 * PAGE)
    lease = ring.lease()
    assert lease is not None
    assert lease.address % PAGE == 0
    assert lease.nbytes == len(lease.view) == 2 * PAGE
    assert ring.lease() is None
    assert ring.lease(timeout=0.01) is None
    lease.release()
    with pytest.raises(RuntimeError, match="already"):
        lease.release()
    again = ring.lease()
    assert again is not None
    assert again.address == lease.address, "buffers are kept"
    again.release()
    ring.trim()
    assert ring.leased == 0
    assert ring.lease() is not None


@pytest.mark.parametrize(("count", "nbytes"), [(0, PAGE), (1, 0), (1, PAGE + 1)])
def test_ring_refuses_invalid_sizes(count: int, nbytes: int) -> None:
    with pytest.raises(ValueError, match="whole pages"):
        StagingRing(count, nbytes)


def test_host_memory_beyond_the_system_is_refused() -> None:
    with pytest.raises(RefusedError, match="staging memory"):
        HostMemory(1 << 60)


def test_direct_file_falls_back_to_the_page_cache(tmp_path: Path) -> None:
    memory = HostMemory(2 * PAGE)
    fd = os.open("/proc/version", os.O_RDONLY)
    with DirectFile(ReadRequest("/proc/version", fd, 20, []), direct=True) as file:
        assert "does not take O_DIRECT" in file.notes[0]
        file.read(memory.view, 20, 0)
    assert bytes(memory.view[:20]) == os.pread(fd, 20, 0)
    os.close(fd)
    path = tmp_path / "file"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    odd = memory.view[1 : PAGE + 1]  # unaligned memory at an aligned offset
    with DirectFile(WriteRequest(str(path), fd, PAGE, []), direct=True) as file:
        odd[:] = bytes(range(256)) * 16
        file.write(odd, 0)
        assert file.notes
    assert path.read_bytes() == bytes(odd)
    os.close(fd)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 70)), max_size=20),
    st.integers(1, 40),
)
def test_windows_hold_every_byte_once_and_cross_no_boundary(runs: list[tuple[int, int]], size: int) -> None:
    extents, at = [], 0
    for gap, nbytes in runs:
        extents.append(Extent(at + gap, nbytes, 0, False))
        at += gap + nbytes
    cut = list(windows(extents, size))
    pieces = [piece for window in cut for piece in window.pieces]
    placed = [(piece.extent, at) for piece in pieces for at in range(piece.offset, piece.end)]
    assert placed == [(index, e.offset + at) for index, e in enumerate(extents) for at in range(e.nbytes)]
    numbers = [window.begin // size for window in cut]
    assert numbers == sorted(set(numbers))
    assert all((window.end - 1) // size == window.begin // size for window in cut)
    assert sum(window.nbytes for window in cut) == sum(extent.nbytes for extent in extents)
