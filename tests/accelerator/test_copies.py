"""Copies of the simulated accelerator: engines, pinned and pageable memory, host memory in place, peer windows."""

from __future__ import annotations

import mmap
import os
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import simulated
from fastio import devices
from fastio.errors import RefusedError

DEVICE = "simulated:0"
MIB = 1 << 20


def bytes_of(seed: int, nbytes: int = 4 * MIB) -> torch.Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def test_pinned_memory_is_told_apart() -> None:
    assert torch.ones(3).pin_memory().is_pinned()
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.ones(3).is_pinned()
    memory = mmap.mmap(-1, MIB)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    simulated.register_host(tensor.data_ptr(), MIB)
    assert tensor.is_pinned()
    simulated.unregister_host(tensor.data_ptr())
    assert not tensor.is_pinned()


def test_copies_of_pinned_memory_are_asynchronous_and_those_of_pageable_memory_are_not() -> None:
    simulated.configure_execution("always")
    source = bytes_of(1)
    device = torch.empty_like(source, device=DEVICE)
    device.copy_(source.pin_memory(), non_blocking=True)
    assert not torch.simulated.current_stream().query()
    torch.simulated.synchronize()
    assert torch.equal(device.cpu(), source)

    landed = torch.zeros_like(source, pin_memory=True)
    landed.copy_(device, non_blocking=True)
    assert not landed.any()  # the host must wait before it reads
    torch.simulated.synchronize()
    assert torch.equal(landed, source)

    pageable = torch.zeros_like(source)
    pageable.copy_(device, non_blocking=True)
    assert torch.equal(pageable, source)
    changed = source.clone()
    device.copy_(changed, non_blocking=True)
    changed.zero_()
    assert torch.equal(device.cpu(), source)


def test_pinned_memory_is_not_reused_before_its_copies_ended() -> None:
    simulated.configure_execution("always")
    host = bytes_of(2).pin_memory()
    address = host.data_ptr()
    device = torch.empty_like(host, device=DEVICE)
    device.copy_(host, non_blocking=True)
    del host
    other = torch.zeros(4 * MIB, dtype=torch.uint8, pin_memory=True)
    assert other.data_ptr() != address
    assert torch.equal(device.cpu(), bytes_of(2))
    assert torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True).data_ptr() == address


@pytest.mark.parametrize("modelled", [False, True])
def test_bandwidth_and_latency_are_those_that_were_set(modelled: bool) -> None:
    simulated.configure_execution("never")
    simulated.configure(0, to_device_bandwidth=400e6, to_host_bandwidth=200e6, latency=0.002)
    simulated.configure_time(modelled)
    host = bytes_of(3).pin_memory()
    device = torch.empty_like(host, device=DEVICE)
    started = time.perf_counter()
    for _ in range(3):
        device.copy_(host, non_blocking=True)
        host.copy_(device, non_blocking=True)
    torch.simulated.synchronize()
    seconds = time.perf_counter() - started
    expected = [0.002 + 4 * MIB / 400e6, 0.002 + 4 * MIB / 200e6] * 3
    took = [copy.ended - copy.started for copy in simulated.trace()]
    if modelled:
        assert took == pytest.approx(expected, abs=1e-6)
    else:  # a loaded machine takes longer
        assert all(one >= least - 1e-6 for one, least in zip(took, expected, strict=True))
        assert seconds >= sum(expected)


def test_each_direction_has_an_engine_and_copies_overlap_compute() -> None:
    simulated.configure_execution("never")
    simulated.configure(0, copy_bandwidth=100e6, compute_bandwidth=300e6)
    simulated.configure_time(True, call_seconds=0.001)
    up, down = bytes_of(4).pin_memory(), torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True)
    device = torch.empty_like(up, device=DEVICE), torch.zeros(4 * MIB, dtype=torch.uint8, device=DEVICE)
    x = torch.ones(256, 256, device=DEVICE)
    torch.simulated.synchronize()
    before = len(simulated.trace())
    streams = torch.simulated.Stream(), torch.simulated.Stream()
    with torch.simulated.stream(streams[0]):
        device[0].copy_(up, non_blocking=True)
    with torch.simulated.stream(streams[1]):
        down.copy_(device[1], non_blocking=True)
    while not streams[0].query():
        x @ x
    torch.simulated.synchronize()
    works = simulated.trace()[before:]
    one, other = (next(work for work in works if work.engine == engine) for engine in ("to_device", "to_host"))
    assert min(one.ended, other.ended) - max(one.started, other.started) > 0.03
    assert simulated.overlapped_bytes(works)[0] > 7 * MIB

    before = len(works) + before  # two copies in one direction share its engine
    for stream, target in zip(streams, device, strict=True):
        with torch.simulated.stream(stream):
            target.copy_(up, non_blocking=True)
    torch.simulated.synchronize()
    one, other = sorted(simulated.trace()[before:], key=lambda work: work.started)
    assert other.started >= one.ended


def test_a_kernel_takes_at_least_its_bytes_at_the_compute_bandwidth() -> None:
    simulated.configure_execution("never")
    simulated.configure(0, compute_bandwidth=100e6)
    x = torch.ones(MIB, device=DEVICE)
    torch.simulated.synchronize()
    started = time.perf_counter()
    x.neg()
    torch.simulated.synchronize()
    assert time.perf_counter() - started >= 8 * MIB / 100e6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_copies_convert_and_keep_layouts(dtype: torch.dtype) -> None:
    base = torch.randn(40, 50)
    expected = base.t()[3:, ::2].to(dtype)
    device = torch.zeros(47, 20, dtype=dtype, device=DEVICE)
    device.copy_(base.t()[3:, ::2])
    assert torch.equal(device.cpu(), expected)
    wide = torch.zeros(47, 40, device=DEVICE)
    wide[:, ::2].copy_(expected)
    assert torch.equal(wide[:, ::2].cpu(), expected.float())
    back = torch.zeros(20, 47, dtype=torch.float64)
    back.t().copy_(device)
    assert torch.equal(back.t(), expected.double())
    transposed = base.to(DEVICE).t()
    assert torch.equal(transposed.cpu(), base.t())
    assert transposed.cpu().stride() == base.t().stride()


@pytest.mark.parametrize("by_torch", [False, True])
def test_copies_by_address_run_on_the_stream_that_is_named(by_torch: bool) -> None:
    """``by_torch``: the way of devices without a function of their own."""
    accelerator = devices.of(DEVICE)
    copy = partial(devices.Accelerator.copy, accelerator) if by_torch else accelerator.copy
    source = bytes_of(1).to(DEVICE)
    host, back = torch.empty(4 * MIB, dtype=torch.uint8, pin_memory=True), torch.zeros_like(source)
    simulated.configure_execution("always")
    stream = accelerator.new_stream(source.device)
    stream.wait_stream(accelerator.current_stream(source.device))
    half = source.nbytes // 2
    pieces = [(0, half), (half, source.nbytes - half), (0, 0)]
    copy(stream, [(host.data_ptr() + start, source.data_ptr() + start, nbytes) for start, nbytes in pieces], True)
    copy(stream, [(host.data_ptr(), back.data_ptr(), source.nbytes)], False)
    assert not stream.record_event().query()
    accelerator.current_stream(source.device).wait_stream(stream)
    assert torch.equal(back.cpu(), source.cpu())
    pageable = torch.empty(4 * MIB, dtype=torch.uint8)
    if not by_torch:
        with pytest.raises(RefusedError, match="not registered"):
            copy(stream, [(pageable.data_ptr(), source.data_ptr(), source.nbytes)], True)


def test_copies_between_devices_order_both_streams() -> None:
    simulated.configure_execution("always")
    source = torch.arange(1000, device=DEVICE)
    other = torch.empty(1000, dtype=torch.int64, device="simulated:1")
    other.copy_(source * 2, non_blocking=True)
    source.zero_()
    total = other + 1
    assert torch.equal(total.cpu(), torch.arange(1000) * 2 + 1)
    assert [work.engine for work in simulated.trace() if "peer" in work.name] == ["peer"]


def test_kernels_read_and_write_registered_host_memory_in_place_at_its_bandwidth() -> None:
    memory = mmap.mmap(-1, 4 * MIB)
    host = torch.frombuffer(memory, dtype=torch.float32)
    host.copy_(torch.arange(MIB))
    with pytest.raises(RuntimeError, match="registered memory"):
        simulated.host_view(host)
    simulated.register_host(host.data_ptr(), 4 * MIB)
    view = simulated.host_view(host)
    assert view.device == torch.device(DEVICE)
    assert view.data_ptr() == host.data_ptr()
    simulated.configure(0, host_access_bandwidth=200e6)
    total = view.double().sum()
    view[:10].add_(1)
    assert total.item() == float(MIB * (MIB - 1) // 2)
    assert torch.equal(host[:10], torch.arange(10.0) + 1)
    reads = [work for work in simulated.trace() if work.name in ("aten::copy_", "aten::_to_copy")]
    assert max(work.ended - work.started for work in reads) >= 4 * MIB / 200e6 - 1e-6
    simulated.unregister_host(host.data_ptr())


def test_a_disk_reads_and_writes_device_memory_through_a_peer_window(tmp_path: Path) -> None:
    tensor = bytes_of(5).to(DEVICE)
    path = tmp_path / "bytes"
    window = simulated.open_peer_window(tensor.data_ptr(), tensor.numel())
    assert simulated.leaks() == [f"peer window of {4 * MIB} bytes at {window:#x}"]
    simulated.close_peer_window(window)
    assert simulated.leaks() == []
    with simulated.peer_window(tensor) as window_bytes:
        path.write_bytes(window_bytes)
    assert path.read_bytes() == bytes_of(5).numpy().tobytes()
    other = torch.empty_like(tensor)
    torch.simulated.synchronize()
    file = os.open(path, os.O_RDONLY)
    with simulated.peer_window(other) as window_bytes:
        assert os.readv(file, [window_bytes]) == 4 * MIB
    os.close(file)
    assert torch.equal(other.cpu(), bytes_of(5))
    with pytest.raises(RuntimeError, match="not memory of one tensor"):
        simulated.open_peer_window(tensor.data_ptr(), 1 << 30)


def test_overlap_is_that_of_the_trace() -> None:
    def work(engine: str, device: int, started: float, ended: float) -> simulated.Work:
        return simulated.Work("", engine, device, 0, 100, 0.0, started, ended)

    kernels = [work("compute", 0, 1, 2), work("compute", 0, 3, 4), work("compute", 1, 0, 9)]
    assert simulated.overlapped_bytes([*kernels, work("to_host", 0, 0, 1)]) == (0, 100)
    assert simulated.overlapped_bytes([*kernels, work("to_host", 0, 1.5, 3.5)]) == (50, 100)
    assert simulated.overlapped_bytes([*kernels, work("to_device", 0, 1, 2), work("peer", 1, 2, 3)]) == (200, 200)
    assert simulated.overlapped_bytes(kernels) == (0, 0)
