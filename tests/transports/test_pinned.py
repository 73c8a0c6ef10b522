"""The ring of staging buffers and the ``pinned`` transport: on host memory, and on CUDA memory if there is a GPU."""

from __future__ import annotations

import errno
import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import simulated
from accelerators import DEVICE
from fastio import devices
from fastio.backends._parts import parts
from fastio.backends.pinned import PinnedTransport
from fastio.errors import RefusedError, ToolUnavailableError, TransferError
from fastio.memory.staging_buffers import HostMemory, StagingRing
from fastio.testing import ChecksumContract
from fastio.testing.layouts import MIB, PAGE, Layout, Run
from fastio.transports import registry
from fastio.transports.transport import Extent, ReadRequest, WriteRequest


class TestHostMemory(ChecksumContract):
    """The contract of the transport without a device. native/tests/transfer/test_staged.cpp has one that is late."""

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


LARGE = Layout([Run(0, 41 * MIB + 3), Run(99, 20), Run(0, 9 * MIB, PAGE)])


@pytest.fixture
def file(tmp_path: Path) -> tuple[str, int]:
    path = str(tmp_path / "file")
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(fd, 0, LARGE.size)
    return path, fd


@pytest.mark.simulated
@pytest.mark.parametrize("threads", [1, 3])
def test_staging_is_not_reused_while_copies_are_in_flight(
    file: tuple[str, int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated.configure_execution("always")  # a copy runs when the host waits for it
    monkeypatch.setenv("FASTIO_IO_THREADS", str(threads))
    path, fd = file
    transport = PinnedTransport()
    extents, memories = LARGE.place(DEVICE, LARGE.noise(LARGE.size))
    transport.write(WriteRequest(path, fd, LARGE.size, extents, durable=False))
    assert Path(path).read_bytes() == LARGE.image(extents, memories).tobytes()
    targets, filled = LARGE.place(DEVICE)
    transport.read(ReadRequest(path, fd, LARGE.size, targets, resident=True))
    os.close(fd)
    for memory, expected in zip(filled, memories, strict=True):
        assert np.array_equal(memory.get(), expected.get())
    copies = {work.stream for work in simulated.trace() if work.engine == "to_device" and work.nbytes == 2 * MIB}
    assert len(copies) <= threads  # of the load; placing the memory copied whole tensors


@pytest.mark.gpu
def test_a_transfer_waits_for_what_the_devices_still_do(file: tuple[str, int]) -> None:
    path, fd = file
    source = torch.randint(0, 256, (32 * MIB,), dtype=torch.uint8)
    tensor = torch.zeros(32 * MIB, dtype=torch.uint8, device=DEVICE)
    tensor.copy_(source.pin_memory(), non_blocking=True)
    extents = [Extent(0, tensor.nbytes, tensor.data_ptr(), True, DEVICE, tensor.untyped_storage())]
    PinnedTransport().write(WriteRequest(path, fd, LARGE.size, extents))
    os.close(fd)
    assert Path(path).read_bytes()[: tensor.nbytes] == source.numpy().tobytes()


@pytest.mark.simulated
@pytest.mark.parametrize("save", [False, True])
def test_a_copy_that_fails_is_refused_and_leaves_nothing(file: tuple[str, int], save: bool) -> None:
    path, fd = file
    transport = PinnedTransport()
    tensor = torch.zeros(LARGE.size, dtype=torch.uint8, device=DEVICE)
    address = tensor.data_ptr()
    owner = torch.empty(1, device=DEVICE)
    del tensor  # freed memory: the device refuses each copy
    extents = [Extent(0, LARGE.size, address, True, DEVICE, owner)]
    move = functools.partial(transport.write, WriteRequest(path, fd, LARGE.size, extents))
    if not save:
        move = functools.partial(transport.read, ReadRequest(path, fd, LARGE.size, extents))
    with pytest.raises(RefusedError, match=r"between a GPU and pinned memory failed: .*freed"):
        move()
    os.close(fd)
    assert transport.ring.leased == 0
    simulated.reset()


def test_a_failed_transfer_releases_every_buffer() -> None:
    transport = PinnedTransport("cpu")
    extents, _ = LARGE.place("cpu", LARGE.noise(LARGE.size))
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(TransferError) as caught:
        transport.write(WriteRequest("/dev/full", full.fileno(), LARGE.size, extents))
    assert caught.value.errno == errno.ENOSPC
    assert transport.ring.leased == 0


def test_a_transfer_that_waits_for_buffers_can_be_cancelled(file: tuple[str, int]) -> None:
    path, fd = file
    transport = PinnedTransport("cpu")
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
            lease = ring.lease(timeout=300)
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


def test_a_file_without_direct_io_is_read_through_the_page_cache() -> None:
    content = Path("/proc/version").read_bytes()
    target = torch.zeros(len(content), dtype=torch.uint8)
    fd = os.open("/proc/version", os.O_RDONLY)
    request = ReadRequest("/proc/version", fd, 1 << 20, [Extent(0, len(content), target.data_ptr(), False)])
    moved = PinnedTransport("cpu").read(request)
    os.close(fd)
    assert target.numpy().tobytes() == content
    assert "does not take O_DIRECT" in moved.notes[0]


def test_threads_and_staging_follow_the_setting_and_the_size(
    file: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, fd = file
    transport = PinnedTransport("cpu")
    made = []
    for threads, nbytes in ((3, 100), (3, 3 * MIB), (5, 40 * MIB), (200, 40 * MIB)):
        monkeypatch.setenv("FASTIO_IO_THREADS", str(threads))
        target = torch.empty(nbytes, dtype=torch.uint8)
        transport.ring.trim()
        transport.read(ReadRequest(path, fd, LARGE.size, [Extent(0, nbytes, target.data_ptr(), False)], resident=True))
        made.append(transport.ring.made)
    os.close(fd)
    assert made == [1, 3, 5, 16]


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 70)), max_size=20),
    st.integers(1, 40),
)
def test_parts_hold_every_byte_once_and_cross_no_boundary(runs: list[tuple[int, int]], size: int) -> None:
    extents, at = [], 0
    for gap, nbytes in runs:
        extents.append(Extent(at + gap, nbytes, 1000 - at, False))
        at += gap + nbytes
    cut = list(parts(extents, size))
    placed = [(index, part.offset + at, part.address + at) for index, part in cut for at in range(part.nbytes)]
    assert placed == [
        (index, e.offset + at, e.address + at) for index, e in enumerate(extents) for at in range(e.nbytes)
    ]
    assert all(part.nbytes and part.offset // size == (part.offset + part.nbytes - 1) // size for _, part in cut)
