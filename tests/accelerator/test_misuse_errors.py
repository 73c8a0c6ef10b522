"""What a GPU punishes by wrong bits or by chance is an error of the simulated accelerator that names the call."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import simulated

DEVICE = "simulated:0"


@pytest.fixture
def host() -> torch.Tensor:
    """Unregistered host memory."""
    return torch.frombuffer(mmap.mmap(-1, 1 << 16), dtype=torch.uint8)


@pytest.mark.parametrize("late", ["never", "random", "always"])
def test_a_missing_wait_is_an_error_whenever_works_run(late: str) -> None:
    simulated.configure_execution(late)
    side = torch.simulated.Stream()
    x = torch.ones(1000, device=DEVICE)
    with (
        pytest.raises(RuntimeError, match=r"aten::mul on stream \d+ of simulated:0 reads what .*fill_ on stream 0"),
        torch.simulated.stream(side),
    ):
        x * 2
    with pytest.raises(RuntimeError, match="without waiting"):
        torch.simulated.synchronize()


def test_the_missing_wait_has_wrong_bits_in_late_execution() -> None:
    simulated.configure_execution("always", check_order=False)
    side = torch.simulated.Stream()
    x = torch.ones(1000, device=DEVICE)
    with torch.simulated.stream(side):
        total = x.sum()
        side.synchronize()
    assert torch.simulated.current_stream().query() is False
    assert total.cpu().item() != 1000


@pytest.mark.parametrize("wait", ["stream", "event", "synchronize", "query", "transitive"])
def test_each_kind_of_wait_orders(wait: str) -> None:
    main, side, third = torch.simulated.current_stream(), torch.simulated.Stream(), torch.simulated.Stream()
    x = torch.ones(1000, device=DEVICE)
    if wait == "stream":
        side.wait_stream(main)
    elif wait == "event":
        side.wait_event(main.record_event())
    elif wait == "synchronize":
        main.synchronize()
    elif wait == "query":
        event = main.record_event()
        while not event.query():
            pass
    else:
        third.wait_stream(main)
        side.wait_event(third.record_event())
    with torch.simulated.stream(side):
        assert x.sum().cpu().item() == 1000


def test_an_event_does_not_order_what_came_after_it() -> None:
    main, side = torch.simulated.current_stream(), torch.simulated.Stream()
    x = torch.ones(1000, device=DEVICE)
    event = main.record_event()
    x.add_(1)
    side.wait_event(event)
    with pytest.raises(RuntimeError, match="without waiting"), torch.simulated.stream(side):
        x.sum()


def test_reads_need_no_order_and_parts_of_one_block_are_apart() -> None:
    main, side = torch.simulated.current_stream(), torch.simulated.Stream()
    x = torch.ones(64, 64, device=DEVICE)
    side.wait_stream(main)
    x.sum()
    with torch.simulated.stream(side):
        x.sum()
    main.wait_stream(side)
    side.wait_stream(main)
    x[:32].add_(1)
    x[32:, :8].add_(1)
    with torch.simulated.stream(side):
        x[32:, 8:].add_(1)  # rows of another 8 columns: not the same bytes
    main.wait_stream(side)
    assert x.sum().item() == 64 * 64 * 2
    x[:32].add_(1)
    with pytest.raises(RuntimeError, match="writes what"), torch.simulated.stream(side):
        x[31:33].zero_()


def test_host_memory_unregistered_before_a_copy_ran(host: torch.Tensor) -> None:
    simulated.configure_execution("always")
    device = torch.zeros(1 << 16, dtype=torch.uint8, device=DEVICE)
    simulated.register_host(host.data_ptr(), 1 << 16)
    device.copy_(host, non_blocking=True)
    with pytest.raises(RuntimeError, match=r"unregister_host: .* copy to_device uses them"):
        simulated.unregister_host(host.data_ptr())
    with pytest.raises(RuntimeError, match="unregister_host"):
        torch.simulated.synchronize()


@pytest.mark.parametrize("direction", ["to_device", "to_host"])
def test_a_copy_that_finds_its_host_memory_unregistered_fails(host: torch.Tensor, direction: str) -> None:
    simulated.configure_execution("always", check_order=False)
    device = torch.zeros(1 << 16, dtype=torch.uint8, device=DEVICE)
    simulated.register_host(host.data_ptr(), 1 << 16)
    if direction == "to_device":
        device.copy_(host, non_blocking=True)
    else:
        host.copy_(device, non_blocking=True)
    simulated.unregister_host(host.data_ptr())
    with pytest.raises(RuntimeError, match=f"copy {direction}: 65536 bytes of host memory.*unregistered before"):
        torch.simulated.synchronize()


def test_a_copy_that_finds_its_host_memory_unmapped_fails() -> None:
    simulated.configure_execution("always")
    memory = mmap.mmap(-1, 1 << 16)
    host = torch.frombuffer(memory, dtype=torch.uint8)
    address = host.data_ptr()
    simulated.register_host(address, 1 << 16)
    device = torch.zeros(1 << 16, dtype=torch.uint8, device=DEVICE)
    device.copy_(host, non_blocking=True)
    del host
    memory.close()
    with pytest.raises(RuntimeError, match=r"copy to_device: .* unmapped before the work ran"):
        torch.simulated.synchronize()
    simulated.reset()
    simulated.unregister_host(address)


def test_a_copy_that_was_waited_for_is_over(host: torch.Tensor) -> None:
    device = torch.zeros(1 << 16, dtype=torch.uint8, device=DEVICE)
    simulated.register_host(host.data_ptr(), 1 << 16)
    event = torch.Event(DEVICE)
    device.copy_(host, non_blocking=True)
    event.record()
    event.synchronize()
    simulated.unregister_host(host.data_ptr())


def test_registrations_twice_and_none(host: torch.Tensor) -> None:
    simulated.register_host(host.data_ptr(), 4096)
    for address, nbytes in ((0, 4096), (4095, 10), (-5, 6)):
        with pytest.raises(RuntimeError, match="registered already"):
            simulated.register_host(host.data_ptr() + address, nbytes)
    simulated.register_host(host.data_ptr() + 4096, 4096)
    simulated.unregister_host(host.data_ptr() + 4096)
    simulated.unregister_host(host.data_ptr())
    with pytest.raises(RuntimeError, match="no memory is registered"):
        simulated.unregister_host(host.data_ptr())


def test_registrations_from_c(host: torch.Tensor) -> None:
    library = simulated.c_library()
    assert library.simulated_host_register(host.data_ptr(), 1 << 16, 0) == 0
    assert host.is_pinned()
    assert library.simulated_host_register(host.data_ptr(), 4096, 0) == 712
    assert library.simulated_host_unregister(host.data_ptr()) == 0
    assert library.simulated_host_unregister(host.data_ptr()) == 713


def test_errors_that_no_call_raised_are_told_at_shutdown() -> None:
    result = run("""
simulated.configure_execution("always")
torch.ones(4, device="simulated").index_select(0, torch.tensor([9], device="simulated"))
""")
    assert result.returncode == 0, result.stderr
    assert "no call raised this error: simulated:0: aten::index_select" in result.stderr


def test_registrations_that_a_fork_copies_are_told(host: torch.Tensor) -> None:
    simulated.register_host(host.data_ptr(), 1 << 16)
    assert simulated.forkable_registrations() == [f"registration of {1 << 16} bytes at {host.data_ptr():#x}"]
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.madvise(ctypes.c_void_p(host.data_ptr()), ctypes.c_size_t(1 << 16), mmap.MADV_DONTFORK) == 0
    assert simulated.forkable_registrations() == []
    simulated.unregister_host(host.data_ptr())


def test_device_memory_that_was_freed_is_no_memory_of_kernels() -> None:
    tensor = torch.ones(1 << 20, device=DEVICE)
    storage = torch._C._construct_storage_from_data_pointer(tensor.data_ptr(), tensor.device, 4 << 20)
    again = torch.empty(0, device=DEVICE).set_(storage)
    assert again.sum().item() == 1 << 20
    del tensor
    with pytest.raises(RuntimeError, match=r"aten::sum: uses device memory that was freed"):
        again.sum()


def test_unregistered_host_memory_is_no_memory_of_kernels(host: torch.Tensor) -> None:
    simulated.register_host(host.data_ptr(), 1 << 16)
    view = simulated.host_view(host)
    simulated.unregister_host(host.data_ptr())
    with pytest.raises(RuntimeError, match=r"aten::.*neither device memory nor registered"):
        view + 1


def run(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program with the accelerator loaded."""
    folder = str(Path(simulated.__file__).parent)
    start = "import os, mmap, torch, simulated\nsimulated.load()\n"
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", start + program],
        env=os.environ | {"PYTHONPATH": folder},
        capture_output=True,
        text=True,
        check=False,
    )


def test_leaks_are_listed_at_shutdown() -> None:
    result = run("""
host = torch.frombuffer(mmap.mmap(-1, 8192), dtype=torch.uint8)
simulated.register_host(host.data_ptr(), 8192)
assert len(simulated.leaks()) == 1
""")
    assert result.returncode == 0, result.stderr
    assert "leaked at shutdown: registration of 8192 bytes at 0x" in result.stderr
    assert run("torch.ones(3, device='simulated')").stderr == ""


def test_use_in_a_forked_child_is_an_error_that_names_the_call() -> None:
    result = run("""
tensor = torch.ones(3, device="simulated")
memory = torch.ones(3).pin_memory()
calls = {
    "aten::add": lambda: tensor + 1,
    "allocation": lambda: torch.empty(3, device="simulated"),
    "synchronize": torch.simulated.synchronize,
    "register_host": lambda: simulated.register_host(1 << 20, 4096),
    "pin_memory": lambda: torch.ones(9000).pin_memory(),
    "Event.record": lambda: torch.Event("simulated").record(),
}
child = os.fork()
for name, call in calls.items():
    try:
        call()
    except RuntimeError as error:
        if child == 0:
            print(str(error).splitlines()[0], flush=True)
if child == 0:
    del tensor, memory
    os._exit(0)
os.waitpid(child, 0)
simulated.unregister_host(1 << 20)
""")
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    for name in ("allocation", "synchronize", "register_host", "pin_memory", "Event.record"):
        assert any(line.startswith(f"{name}: the simulated accelerator cannot be used in a forked") for line in lines)
    assert len(lines) == 6
