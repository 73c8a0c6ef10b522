"""Random programs on streams: either an error names a missing wait, or the bits are those of the program in order."""

from __future__ import annotations

import random

import pytest
import torch

import simulated

COUNT = 4096  # elements of a tensor
STEPS = 40


class Program:
    """Steps on two streams of each device. A step uses tensors; before it, the streams that used them are waited for.

    With ``forgets``, some waits are left out, which may or may not matter.
    """

    def __init__(self, seed: int, forgets: float) -> None:
        self.choose = random.Random(seed)
        self.forgets = forgets
        self.streams = [torch.simulated.Stream(f"simulated:{device}") for device in (0, 0, 1, 1)]
        self.tensors: dict[int, torch.Tensor] = {}  # on devices
        self.owners: dict[int, int] = {}  # the stream on which each was made
        self.events: dict[int, list[torch.Event]] = {}  # of the steps that used each
        self.expected: dict[int, torch.Tensor] = {}
        self.landed: list[tuple[torch.Tensor, torch.Tensor, torch.Event]] = []
        self.made = 0

    def run(self) -> None:
        for _ in range(STEPS):
            self.step()
        for host, expected, event in self.landed:
            event.synchronize()
            assert torch.equal(host, expected)
        for number, tensor in self.tensors.items():
            for event in self.events[number]:
                event.synchronize()
            assert torch.equal(tensor.cpu(), self.expected[number])
        torch.simulated.synchronize(0)
        torch.simulated.synchronize(1)

    def step(self) -> None:
        stream = self.choose.randrange(4)
        here = [number for number, owner in self.owners.items() if owner // 2 == stream // 2]
        action = self.choose.choice(["make", "add", "scale", "land", "move", "free"] if here else ["make"])
        used = [] if action == "make" else self.choose.sample(here, min(len(here), 2))
        if action == "free":
            self.free(used[0])
            return
        with torch.simulated.stream(self.streams[stream]):
            self.wait_for(used, self.streams[stream])
            getattr(self, action)(stream, *used)
            event = self.streams[stream].record_event()
        for number in used:
            self.events[number].append(event)

    def wait_for(self, numbers: list[int], stream: torch.Stream) -> None:
        for number in numbers:
            for event in self.events[number]:
                if self.choose.random() >= self.forgets:
                    stream.wait_event(event)

    def keep(self, stream: int, tensor: torch.Tensor, expected: torch.Tensor) -> None:
        self.made += 1
        self.tensors[self.made], self.owners[self.made] = tensor, stream
        self.expected[self.made], self.events[self.made] = expected, [self.streams[stream].record_event()]

    def make(self, stream: int) -> None:
        values = torch.full((COUNT,), float(self.choose.randrange(1000)))
        self.keep(stream, values.pin_memory().to(self.streams[stream].device, non_blocking=True), values)

    def add(self, stream: int, one: int, other: int | None = None) -> None:
        other = one if other is None else other
        self.keep(stream, self.tensors[one] + self.tensors[other], self.expected[one] + self.expected[other])

    def scale(self, stream: int, one: int, *_: int) -> None:
        self.tensors[one].mul_(0.5)
        self.expected[one] = self.expected[one] * 0.5

    def land(self, stream: int, one: int, *_: int) -> None:
        host = torch.zeros(COUNT).pin_memory()
        host.copy_(self.tensors[one], non_blocking=True)
        self.landed.append((host, self.expected[one], self.streams[stream].record_event()))

    def move(self, stream: int, one: int, *_: int) -> None:
        other = 3 - stream  # a stream of the other device
        with torch.simulated.stream(self.streams[other]):
            moved = self.tensors[one].to(self.streams[other].device, non_blocking=True)
        self.keep(other, moved, self.expected[one])

    def free(self, number: int) -> None:
        if self.choose.random() >= self.forgets:
            for stream in self.streams:
                if stream.device == self.tensors[number].device:
                    self.tensors[number].record_stream(stream)
        for kept in (self.tensors, self.owners, self.expected, self.events):
            del kept[number]


@pytest.mark.parametrize("late", ["never", "random", "always"])
def test_programs_that_wait_have_the_bits_of_the_program_in_order(late: str) -> None:
    for seed in range(60):
        simulated.configure_execution(late, late_seed=seed)
        Program(seed, forgets=0).run()


def test_programs_that_forget_to_wait_are_told_or_right() -> None:
    told = 0
    for seed in range(150):
        simulated.configure_execution("always" if seed % 2 else "random", late_seed=seed)
        try:
            Program(seed, forgets=0.1).run()
        except RuntimeError as error:
            assert "without waiting" in str(error)  # noqa: PT017
            told += 1
        simulated.reset()
    assert 30 < told < 150


def test_a_thousand_iterations_leak_nothing() -> None:
    torch.simulated.empty_cache()
    before = [torch.simulated.memory_allocated(device) for device in range(2)]
    streams = [torch.simulated.Stream(f"simulated:{device}") for device in range(2)]
    hosts = [torch.arange(COUNT, dtype=torch.float32).pin_memory() for _ in range(2)]
    for number in range(1000):
        for device in range(2):
            with torch.simulated.stream(streams[device]):
                values = hosts[device].to(f"simulated:{device}", non_blocking=True)
                result = (values * 2 + number).to("cpu", non_blocking=True)  # which is pinned
                streams[device].synchronize()
            assert result[5].item() == 10 + number
    del values, result
    torch.simulated.synchronize(0)
    torch.simulated.synchronize(1)
    assert [torch.simulated.memory_allocated(device) for device in range(2)] == before
    assert simulated.leaks() == []
