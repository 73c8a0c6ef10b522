"""Pinned and staging memory: forks, the garbage collector, and the order of unpinning. CUDA is a recorder here."""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import warm_python
from fastio import devices
from fastio.errors import RefusedError
from fastio.hybrid.memory.device_memory import TwoBuffers
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.ranks import OneRank
from fastio.memory.staging_buffers import HostMemory
from fastio.testing.layouts import MIB

CUDA = devices.of("cuda")

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


class Driver:
    """Records CUDA's calls. Device 0 has a context, device 1 has none."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.registered: dict[int, int] = {}
        self.resident: dict[int, int] = {}
        self.result = 0

    def register(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 1
        if not self.result:
            assert is_mapped(address), "registered before it was mapped"
            assert address not in self.registered, "registered twice"
            self.registered[address] = nbytes
            self.resident[address] = resident(address, nbytes)
        self.calls.append("register")
        return self.result

    def unregister(self, address: int) -> int:
        assert is_mapped(address), "unmapped before it was unregistered"
        self.calls.append("unregister")
        if not self.result:
            del self.registered[address]
        return self.result


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver()
    runtime = SimpleNamespace(cudaHostRegister=made.register, cudaHostUnregister=made.unregister)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: made.calls.append(f"wait for {device}"))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == 0, raising=False)
    return made


def mappings() -> Iterator[tuple[int, int, str]]:
    """The first and last address of each mapping of this process, and what smaps says about it."""
    for text in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text()):
        first, last = text.split(maxsplit=1)[0].split("-")
        yield int(first, 16), int(last, 16), text


def smaps(address: int) -> str:
    return next((text for first, last, text in mappings() if first <= address < last), "")


def is_mapped(address: int) -> bool:
    return bool(smaps(address))


def resident(address: int, nbytes: int) -> int:
    """How many bytes of this memory, and of what shares a mapping with it, are faulted in."""
    inside = [text for first, last, text in mappings() if first < address + nbytes and last > address]
    return sum(int(size) << 10 for text in inside for size in re.findall(r"^Rss: +(\d+)", text, re.MULTILINE))


def in_child(work: Callable[[], bool]) -> int:
    """The exit code of a forked child: 0 if ``work`` returned True, negative for a signal."""
    child = os.fork()
    if child == 0:
        code = 2
        faulthandler.disable()  # a fault may be what is expected
        try:
            code = 0 if work() else 1
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("pin", [False, True])
def test_forked_child_gets_no_copy(driver: Driver, pin: bool) -> None:
    memory = HostMemory(8 * MIB, CUDA if pin else None)
    ctypes.memset(memory.address, 1, memory.nbytes)
    assert " dc" in smaps(memory.address).partition("VmFlags:")[2], "MADV_DONTFORK"
    assert in_child(lambda: not is_mapped(memory.address)) == 0
    assert in_child(lambda: ctypes.string_at(memory.address, 1) == b"\1") == -signal.SIGSEGV
    memory.close()


@pytest.mark.parametrize("collect", [False, True])
@pytest.mark.parametrize("pin", [False, True])
def test_freeing_it_in_a_child_leaves_the_childs_own_memory_and_cuda_alone(
    driver: Driver, pin: bool, collect: bool
) -> None:
    kept = [HostMemory(8 * MIB, CUDA if pin else None)]
    address = kept[0].address
    map_memory = ctypes.CDLL(None).mmap
    map_memory.restype, map_memory.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4]

    def work() -> bool:
        private, fixed, anonymous, read_and_write = 2, 16, 32, 3
        assert map_memory(address, 8 * MIB, read_and_write, private | fixed | anonymous, -1, 0) == address
        ctypes.memset(address, 7, 8 * MIB)
        calls = len(driver.calls)
        if not collect:
            kept[0].close()
        kept.clear()
        gc.collect()
        return ctypes.string_at(address, 8 * MIB) == b"\7" * (8 * MIB) and len(driver.calls) == calls

    assert in_child(work) == 0
    kept.pop().close()
    assert not is_mapped(address)


def test_cpu_tensors_that_a_user_reaches_stay_readable_in_a_child() -> None:
    parameters = FlatBuffer(4096, TwoBuffers(), OneRank()).bytes(0, 4096)
    parameters.fill_(3)
    assert in_child(lambda: bytes(parameters.numpy()) == b"\3" * 4096) == 0
    with pytest.raises(ValueError, match="cannot be inherited"):
        HostMemory(4096, pin_for=CUDA, inherited=True)


BACKWARD_IN_A_CHILD = """
import os, sys, torch, fastio

x = torch.arange(2048, dtype=torch.float32).requires_grad_()
offload = fastio.Offload(store=sys.argv[1], policy="all", budget=0, host_budget=1 << 20, codec="none")
with offload:
    y = x.sin().cos().sum()
child = os.fork()
if child == 0:
    code = 2
    try:
        y.backward()
        code = 0 if x.grad.equal(-x.detach().sin().sin() * x.detach().cos()) else 1
    finally:
        os._exit(code)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
offload.close()
sys.exit(code)
"""


def test_saved_tensors_in_host_memory_stay_readable_in_a_child(tmp_path: Path) -> None:
    """In a process of its own: torch runs no backward in a child whose parent has run one for a device."""
    ended = warm_python.run(BACKWARD_IN_A_CHILD, str(tmp_path))
    assert ended.returncode == 0, ended.stderr


def test_all_devices_are_waited_for_before_it_is_unpinned_and_then_it_is_unmapped(driver: Driver) -> None:
    memory = HostMemory(8 * MIB, pin_for=CUDA)
    assert driver.registered == {memory.address: 8 * MIB}
    address = memory.address
    memory.close()
    assert driver.calls == ["register", "wait for 0", "unregister"]
    assert not is_mapped(address)
    del memory
    assert len(driver.calls) == 3


def test_collected_memory_is_unpinned_as_if_closed(driver: Driver) -> None:
    memory = HostMemory(8 * MIB, pin_for=CUDA)
    address = memory.address
    loop = [memory]
    loop.append(loop)  # type: ignore[arg-type]
    del memory, loop
    gc.collect()
    assert driver.calls == ["register", "wait for 0", "unregister"]
    assert not driver.registered
    assert not is_mapped(address)


def test_tensors_outlive_collected_memory(driver: Driver) -> None:
    memory = HostMemory(8 * MIB, pin_for=CUDA)
    tensor = torch.frombuffer(memory.view, dtype=torch.uint8).fill_(5)
    address = memory.address
    del memory
    assert not driver.registered
    assert tensor.eq(5).all()
    del tensor
    assert not is_mapped(address)


def test_memory_that_cannot_be_unpinned_is_never_unmapped(driver: Driver) -> None:
    memory = HostMemory(8 * MIB, pin_for=CUDA)
    address = memory.address
    driver.result = 700
    with pytest.raises(RefusedError, match="unpinning failed: CUDA error 700"):
        memory.close()
    memory.close()  # nothing is left to do
    del memory
    assert is_mapped(address)


def test_refused_pinning_frees_the_memory(driver: Driver) -> None:
    driver.result = 2
    with pytest.raises(RefusedError, match="pinning 8388608 bytes failed: CUDA error 2"):
        HostMemory(8 * MIB, pin_for=CUDA)
    driver.result = 0
    assert not driver.registered
    assert driver.calls == ["register"]


def test_nothing_of_cuda_is_called_at_exit() -> None:
    program = (
        "import torch, types\n"
        "from fastio import devices\n"
        "from fastio.memory.staging_buffers import HostMemory\n"
        "CUDA = devices.of('cuda')\n"
        "def unregister(address): print('called'); return 0\n"
        "runtime = types.SimpleNamespace(cudaHostRegister=lambda *a: 0, cudaHostUnregister=unregister)\n"
        "torch.cuda.cudart = lambda: runtime\n"
        "torch.cuda.device_count = lambda: 0\n"
        "HostMemory(1 << 21, CUDA).close()\n"
        "kept = HostMemory(1 << 21, CUDA)\n"
        "loop = [HostMemory(1 << 21, CUDA)]; loop.append(loop)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "called\n", "")


def test_pinned_memory_is_in_huge_pages_and_populated_before_it_is_registered(driver: Driver) -> None:
    memory = HostMemory(96 * MIB, pin_for=CUDA)
    assert memory.address % (2 * MIB) == 0
    assert driver.resident[memory.address] >= memory.nbytes
    memory.close()


@pytest.mark.skipif(
    Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "1", reason="this system refuses no memory"
)
def test_more_memory_than_the_system_has_is_refused_before_it_is_touched() -> None:
    sizes = dict(re.findall(r"^(MemTotal|SwapTotal): +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE))
    with pytest.raises(RefusedError, match="staging memory: Cannot allocate memory"):
        HostMemory((sum(map(int, sizes.values())) << 10) + (1 << 30))
