"""Tensors, devices, streams and events of the simulated accelerator, as torch's own interfaces see them."""

from __future__ import annotations

import ctypes
import io
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import simulated

DEVICE = "simulated:0"
HAS_ACCELERATOR_MEMORY = hasattr(torch.accelerator, "memory_allocated")


def test_torch_knows_two_devices() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("simulated")
    assert torch.accelerator.device_count() == torch.simulated.device_count() == 2
    assert torch.accelerator.is_available()
    with torch.simulated.device(1):
        assert torch.empty(3, device="simulated").device == torch.device("simulated:1")
    assert torch.empty(3, device="simulated").device == torch.device(DEVICE)


def test_operators_have_the_results_of_the_cpu() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(17, 33), torch.randn(33, 17)
    x, y = a.to(DEVICE), b.to(DEVICE)
    pairs = [
        (x @ y, a @ b),
        ((x + 1).relu_().t()[2:, ::3], (a + 1).relu_().t()[2:, ::3]),
        (torch.nn.functional.layer_norm(x, (33,)), torch.nn.functional.layer_norm(a, (33,))),
        (x.softmax(-1).sum(0), a.softmax(-1).sum(0)),
        (torch.cat([x, y.t()]).to(torch.bfloat16), torch.cat([a, b.t()]).to(torch.bfloat16)),
        (x[x > 0], a[a > 0]),
        (x.nonzero(), a.nonzero()),
        (x.topk(3).indices, a.topk(3).indices),
        (x[:, torch.tensor([3, 1])], a[:, torch.tensor([3, 1])]),
        (torch.arange(7, device=DEVICE), torch.arange(7)),
        (torch.view_as_real(x.to(torch.complex64)), torch.view_as_real(a.to(torch.complex64))),
        (x.unfold(1, 4, 2), a.unfold(1, 4, 2)),
        (x.view(torch.int32), a.view(torch.int32)),
        (torch.stack(x.split(5, 1)[:2]), torch.stack(a.split(5, 1)[:2])),
    ]
    for number, (got, expected) in enumerate(pairs):
        assert got.device == torch.device(DEVICE), number
        assert got.stride() == expected.stride(), number
        assert torch.equal(got.cpu(), expected), number
    assert x.sum().item() == a.sum().item()
    assert torch.equal(x, a.to(DEVICE))


def test_results_are_asynchronous() -> None:
    simulated.configure_execution("always")
    x = torch.full((64, 64), 2.0, device=DEVICE)
    for _ in range(10):
        x = (x @ x) * 1e-3
    stream = torch.simulated.current_stream()
    assert simulated.trace() == []
    assert not stream.query()  # which lets the works start
    stream.synchronize()
    assert stream.query()
    assert [work.name for work in simulated.trace()].count("aten::mm") == 10


def test_out_and_in_place_operators_write_where_they_are_asked_to() -> None:
    x = torch.arange(6.0, device=DEVICE)
    out = torch.empty(0, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.add(x, 1, out=out)
    assert torch.equal(out.cpu(), torch.arange(6.0) + 1)
    base = torch.zeros(4, 4, device=DEVICE)
    base[1:3, 2] += 5
    expected = torch.zeros(4, 4)
    expected[1:3, 2] += 5
    assert torch.equal(base.cpu(), expected)
    indices = torch.empty(0, dtype=torch.int64, device=DEVICE)
    torch.nonzero(base, out=indices)
    assert torch.equal(indices.cpu(), expected.nonzero())


def test_tensors_of_two_devices_are_not_mixed() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3, device="simulated:1")
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
    assert (torch.ones(3, device=DEVICE) + torch.tensor(1)).dtype == torch.float32


def test_wrong_arguments_are_errors_of_the_call() -> None:
    x = torch.ones(3, 4, device=DEVICE)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            x @ x
        with pytest.raises(RuntimeError, match="must match the size"):
            x + torch.ones(5, device=DEVICE)
    assert simulated.error() == ""


def test_a_kernel_that_fails_names_itself_at_the_next_synchronisation() -> None:
    table = torch.ones(4, 2, device=DEVICE)
    index = torch.tensor([9], device=DEVICE)
    table.index_select(0, index)
    with pytest.raises(RuntimeError, match=r"aten::index_select"):
        torch.simulated.synchronize()
    with pytest.raises(RuntimeError, match="aten::index_select"):  # and at each call after it, as CUDA's
        torch.ones(1, device=DEVICE)
    simulated.reset()
    torch.ones(1, device=DEVICE)


def test_the_host_cannot_touch_device_memory() -> None:
    program = """
import ctypes, torch, simulated
simulated.load()
tensor = torch.ones(4, device="simulated")
torch.simulated.synchronize()
print("before", flush=True)
ctypes.string_at(tensor.data_ptr(), 4)
print("after", flush=True)
"""
    folder = str(Path(simulated.__file__).parent)
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (-signal.SIGSEGV, "before\n"), result.stderr


def test_memory_is_poisoned_when_allocated_and_when_freed() -> None:
    tensor = torch.empty(64, device=DEVICE)
    assert tensor.isnan().all().item()
    address = tensor.data_ptr()
    window = simulated.open_peer_window(address, 256)
    torch.simulated.synchronize()
    assert ctypes.string_at(window, 256) == b"\xff" * 256
    del tensor
    torch.simulated.synchronize()
    assert ctypes.string_at(window, 256) == b"\xfb" * 256
    simulated.close_peer_window(window)


@pytest.mark.parametrize("modelled", [False, True])
def test_events_time_order_and_wait(modelled: bool) -> None:
    simulated.configure(0, copy_bandwidth=1e9)
    simulated.configure_time(modelled)
    host = torch.ones(5_000_000, dtype=torch.uint8).pin_memory()
    device = torch.empty_like(host, device=DEVICE)
    start, end = torch.Event(DEVICE, enable_timing=True), torch.Event(DEVICE, enable_timing=True)
    start.record()
    device.copy_(host, non_blocking=True)
    end.record()
    assert not (modelled and end.query())  # a loaded machine may ask late
    end.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 5.0
    with pytest.raises((RuntimeError, ValueError), match=r"enable_timing|not marked"):
        torch.Event(DEVICE).elapsed_time(end)


def test_streams_wait_for_each_other() -> None:
    simulated.configure_execution("always")
    side = torch.simulated.Stream()
    x = torch.ones(100, device=DEVICE)
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        assert torch.simulated.current_stream() == side
        y = x * 3
    torch.simulated.current_stream().wait_event(side.record_event())
    assert (y + x).sum().item() == 400
    assert torch.simulated.current_stream() != side


def test_autograd_runs_backward_on_the_stream_of_forward() -> None:
    side = torch.simulated.Stream()
    x = torch.ones(8, device=DEVICE, requires_grad=True)
    side.wait_stream(torch.simulated.current_stream())
    with torch.simulated.stream(side):
        y = (x * x).sum()
    torch.simulated.current_stream().wait_stream(side)
    torch.simulated.synchronize()
    before = len(simulated.trace())
    y.backward()
    torch.simulated.synchronize()
    assert torch.equal(x.grad.cpu(), torch.full((8,), 2.0))
    assert {work.stream for work in simulated.trace()[before:] if work.name == "aten::mul"} == {side.stream_id}


def test_random_numbers_are_those_of_the_seed_whenever_they_run() -> None:
    drawn = []
    for late in ("never", "always"):
        simulated.configure_execution(late)
        torch.manual_seed(7)  # seeds all devices
        first = torch.randn(5, device=DEVICE)
        state = torch.simulated.get_rng_state(0)
        dropped = torch.nn.functional.dropout(torch.ones(50, device=DEVICE))
        torch.simulated.set_rng_state(state, 0)
        again = torch.nn.functional.dropout(torch.ones(50, device=DEVICE))
        assert torch.equal(dropped, again)
        drawn.append((first.cpu(), dropped.cpu(), torch.randperm(9, device=DEVICE).cpu()))
    for one, other in zip(*drawn, strict=True):
        assert torch.equal(one, other)
    generator = torch.Generator(DEVICE).manual_seed(3)
    one = torch.rand(4, device=DEVICE, generator=generator)
    assert not torch.equal(one, torch.rand(4, device=DEVICE, generator=generator))
    assert torch.equal(one, torch.rand(4, device=DEVICE, generator=generator.manual_seed(3)))
    assert not torch.equal(one, torch.rand(4, device=DEVICE, generator=generator.manual_seed(4)))


def test_autocast_computes_in_bfloat16() -> None:
    layer = torch.nn.Linear(4, 4).to(DEVICE)
    with torch.autocast("simulated", dtype=torch.bfloat16):
        result = layer(torch.ones(2, 4, device=DEVICE))
        assert result.dtype == torch.bfloat16
        assert result.softmax(-1).dtype == torch.float32


def test_tensors_are_saved_and_loaded_by_torch() -> None:
    file = io.BytesIO()
    torch.save({"x": torch.arange(5, device="simulated:1")}, file)
    loaded = torch.load(io.BytesIO(file.getvalue()))["x"]
    assert loaded.device == torch.device("simulated:1")
    assert torch.equal(loaded.cpu(), torch.arange(5))


def test_storages_are_resized() -> None:
    x = torch.arange(1000.0, device=DEVICE)
    before = torch.simulated.memory_allocated(0)
    x.untyped_storage().resize_(0)
    assert torch.simulated.memory_allocated(0) == before - 4096
    x.untyped_storage().resize_(4000)
    x.copy_(torch.arange(1000.0))
    assert torch.equal(x.cpu(), torch.arange(1000.0))


def test_convolutions_have_the_results_of_the_cpu() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 4, 3, padding=1)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    layer(x).square().sum().backward()
    expected = x.grad, layer.weight.grad.clone()
    layer.to(DEVICE).zero_grad()
    on_device = x.detach().to(DEVICE).requires_grad_()
    layer(on_device).square().sum().backward()
    assert torch.equal(on_device.grad.cpu(), expected[0])
    assert torch.equal(layer.weight.grad.cpu(), expected[1])


@pytest.mark.skipif(not HAS_ACCELERATOR_MEMORY, reason="torch.accelerator counts memory since torch 2.9")
def test_torch_accelerator_counts_memory() -> None:
    tensor = torch.empty(1000, device="simulated:1")
    assert torch.accelerator.memory_allocated(1) == torch.simulated.memory_allocated(1) >= 4096
    del tensor
    torch.accelerator.empty_cache()
    torch.accelerator.synchronize(1)
    assert torch.accelerator.max_memory_allocated(1) >= 4096


@pytest.mark.skipif(not HAS_ACCELERATOR_MEMORY, reason="older data loaders pin for CUDA only")
def test_a_data_loader_pins_its_batches() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, pin_memory=True)
    batches = list(loader)
    assert all(batch.is_pinned() for batch in batches)
    assert torch.equal(torch.cat([batch.to(DEVICE, non_blocking=True) for batch in batches]).cpu(), torch.arange(8))


def test_workers_of_a_data_loader_are_forked_beside_the_devices() -> None:
    tensor = torch.ones(3, device=DEVICE)
    loader = torch.utils.data.DataLoader(torch.arange(8), batch_size=4, num_workers=1, multiprocessing_context="fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Python, that threads and fork may not go together
        assert torch.equal(torch.cat(list(loader)), torch.arange(8))
    assert (tensor + 1).sum().item() == 6
