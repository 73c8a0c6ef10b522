"""The host's time for each saved tensor: a step of many small operators, with offload and others' ways beside.

A host that is slow in the pack and unpack hooks leaves an accelerator without work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.autograd.graph import save_on_cpu

import fastio
from fastio import devices
from fastio.offload import BlockStore
from fastio_bench.harness.torch_threads import torch_threads
from fastio_bench.offload.pinned_copies import PinnedCopies
from fastio_bench.report.table import Cell, ResultTable

PLAIN, OURS, SIMPLEST, SAVE_ON_CPU = "plain", "fastio", "torchtune's method", "save_on_cpu"
_TENSORS = 100
_WARM_UP = 6  # steps: three are profiled, one is planned
_HOST_NBYTES, _DEVICE_NBYTES = 8 << 10, 64 << 10  # of a saved tensor
_DEVICE_TENSORS_PENDING = 32

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class HostTime:
    """Medians of one way: microseconds for each saved tensor, until the call returns; waits of the host count.

    ``beyond_us``: forward and backward, less those of plain training. ``cpu_beyond_us``: the processor's time of the
    threads that run them, less that of plain training; waits and other threads do not count.
    """

    device: str
    way: str
    forward_us: float
    backward_us: float
    beyond_us: float
    cpu_beyond_us: float


def measure(device: torch.device, folder: Path, rounds: int) -> list[HostTime]:
    """Train ``rounds`` interleaved steps by each way. Each saves 100 tensors: of 8 KiB on the CPU, else of 64 KiB.

    On the CPU fastio has a budget of 0, on a device one of 32 tensors; both with room for all in host memory. The
    store's disk reaches no device, where fastio would choose between host memory and the disk.

    torch has one thread: those of the simulated device's kernels would spin, and take the processor from the host.
    """
    with torch_threads(1):
        return _measure(device, folder, rounds)


def _measure(device: torch.device, folder: Path, rounds: int) -> list[HostTime]:
    on_host = device.type == "cpu"
    nbytes = _HOST_NBYTES if on_host else _DEVICE_NBYTES
    budget = 0 if on_host else _DEVICE_TENSORS_PENDING * nbytes
    # Host memory is counted in pages, and a tensor on the CPU may begin and end within one.
    room = _TENSORS * (nbytes + (8 << 10))
    with ExitStack() as stack:
        store: Any = folder if on_host else stack.enter_context(BlockStore(folder, driver="threads"))
        made = fastio.Offload(store=store, policy="all", budget=budget, host_budget=room, codec="none")
        offload = stack.enter_context(closing(made))
        ways = dict(_ways(device, offload))
        taken: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
        for number in range(_WARM_UP + rounds):
            for way, around in ways.items():
                times = _step(device, nbytes // 4, around)
                if number >= _WARM_UP:
                    taken[way].append(times)
        if offload.failure or offload.counts.refused:
            raise RuntimeError(f"offload did not work: {offload.report()}")
    medians = {
        way: [median(times) * 1e6 / _TENSORS for times in zip(*all_, strict=True)] for way, all_ in taken.items()
    }
    plain_forward, plain_backward, plain_cpu = medians[PLAIN]
    plain = plain_forward + plain_backward
    return [
        HostTime(str(device), way, forward, backward, forward + backward - plain, cpu - plain_cpu)
        for way, (forward, backward, cpu) in medians.items()
    ]


def table(found: list[HostTime]) -> ResultTable:
    """A row for each way on each device."""
    simplest = {one.device: one for one in found if one.way == SIMPLEST}
    rows: list[list[Cell]] = []
    for one in found:
        row: list[Cell] = [one.device, one.way, one.forward_us, one.backward_us]
        if one.way != PLAIN:
            row += [one.beyond_us, one.cpu_beyond_us]
            other = simplest.get(one.device)
            row += [one.beyond_us / other.beyond_us, one.cpu_beyond_us / other.cpu_beyond_us] if other else [None, None]
        rows.append(row + [None] * (8 - len(row)))
    columns = (
        *("device", "way", "forward us*", "backward us*", "beyond plain us*", "CPU beyond plain us*"),
        *(f"x {SIMPLEST}*", f"x {SIMPLEST}, CPU*"),
    )
    note = (
        "Until forward and backward return, for each saved tensor: of 8 KiB on the CPU, else of 64 KiB. "
        "Beyond plain: both together, less plain training's. CPU: the processor's time of the threads that run them. "
        f"x: how many times that of {SIMPLEST}, which is for devices alone. torch has one thread."
    )
    return ResultTable("host-time", "The host's time for each saved tensor", columns, rows, note=note)


def _ways(device: torch.device, offload: fastio.Offload) -> Iterator[tuple[str, Around]]:
    yield PLAIN, nullcontext
    if device.type != "cpu":
        yield SIMPLEST, lambda: PinnedCopies(device)
    yield SAVE_ON_CPU, lambda: save_on_cpu(pin_memory=device.type != "cpu")
    yield OURS, lambda: offload


def _step(device: torch.device, elements: int, around: Around) -> tuple[float, float, float]:
    """Return the seconds of forward and of backward, until they return, and the CPU seconds of their threads.

    The device has no work before.
    """
    accelerator = devices.find(device)
    x = torch.randn(elements).to(device).requires_grad_()
    if accelerator is not None:
        accelerator.synchronize(device)
    backward_cpu: list[float] = []  # of the thread that runs backward: at its first node, and at its last
    x.register_hook(lambda _: backward_cpu.append(time.thread_time()))
    cpu = time.thread_time()
    began = time.perf_counter()
    with around():
        y = x
        for _ in range(_TENSORS):
            y = y.sin()
        y = y.sum()
    forward_ended = time.perf_counter()
    cpu = time.thread_time() - cpu
    y.register_hook(lambda _: backward_cpu.append(time.thread_time()))
    y.backward()
    ended = time.perf_counter()
    if accelerator is not None:
        accelerator.synchronize(device)
    return forward_ended - began, ended - forward_ended, cpu + backward_cpu[1] - backward_cpu[0]
