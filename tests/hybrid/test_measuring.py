"""Planning from measured costs: three ordinary training steps, with device memory that reports times."""

from __future__ import annotations

import itertools
import weakref
from typing import Any

import pytest
import torch
from torch import nn

from fastio.hybrid import Hybrid, manager
from hybrid_training import BATCH, CLASSES, LENGTH, MODELS, LateDeviceMemory, train


class Timed(LateDeviceMemory):
    """A clock that advances one second per reading, and device memory whose allocations can be counted."""

    measures = True

    def __init__(self) -> None:
        super().__init__()
        self._clock = itertools.count()

    def record_time(self) -> float:
        return next(self._clock)

    def allocate(self, nbytes: int) -> torch.Tensor:
        return torch.full((nbytes,), 0xFF, dtype=torch.uint8)


@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("model", MODELS)
def test_measured_steps_give_the_plain_bits(model: str, reserve: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "device_memory_for", lambda device: Timed())
    plans: list[Any] = []
    trained = train(MODELS[model], {"gradient_reserve": reserve}, 8, during=lambda hybrid: plans.append(hybrid.plan))
    trained.assert_same(train(MODELS[model], None, 8))
    assert [plan is None for plan in plans] == [True, True] + [False] * 6


class Scaled(nn.Module):
    """An embedding whose forward writes to its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LENGTH, LENGTH, max_norm=0.5)
        self.head = nn.Linear(LENGTH, CLASSES)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(inputs + self.embedding(torch.arange(BATCH)))
        return outputs


def test_weights_that_forward_writes_in_measured_steps_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "device_memory_for", lambda device: Timed())
    train(Scaled, {}, 5).assert_same(train(Scaled, None, 5))


class Costly(nn.Module):
    """A layer that takes ``forward`` and ``backward`` more ticks of a clock."""

    def __init__(self, clock: Clock, forward: int, backward: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.clock, self.takes = clock, (forward, backward)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.clock.now += self.takes[0]
        scaled = inputs * self.weight
        scaled.register_hook(lambda grad: self.clock.pass_by(self.takes[1]))
        return scaled


class Clock(LateDeviceMemory):
    measures = True
    now = 0

    def pass_by(self, ticks: int) -> None:
        self.now += ticks

    def record_time(self) -> float:
        return self.now

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> Any:
        self.now += 1000
        return super().copy_to_device(device, host)


@pytest.mark.parametrize("interrupted", [False, True])
def test_measured_costs_equal_the_times_of_the_layers(interrupted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    clock = Clock()
    monkeypatch.setattr(manager, "device_memory_for", lambda device: clock)
    model = nn.Sequential(Costly(clock, 3, 50), Costly(clock, 7, 20))
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in range(3):
        if interrupted:  # interrupt after the first layer; the pass runs again
            broken = model[1].register_forward_pre_hook(interrupt)
            with pytest.raises(KeyboardInterrupt):
                model(torch.randn(2, 16))
            broken.remove()
        model(torch.randn(2, 16)).sum().backward()
        hybrid.step()
    costs = hybrid.report().costs
    assert costs is not None
    assert [one.copy_s for one in costs] == [1000, 1000]
    assert [one.forward_s for one in costs] == [3, 7]
    assert [one.forward_dha_s for one in costs] == [3, 7]
    assert [one.nbytes for one in costs] == [64, 64]
    assert hybrid.plan is not None
    assert set(hybrid.plan.modes) == {"DHA"}, "reading in place takes no longer here, but copies do"
    assert not hybrid.report().simulated


@pytest.mark.skipif(
    not hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks"),
    reason="this torch does not tell whose saved-tensor hooks are active, and so autograd keeps the copies themselves",
)
def test_measuring_holds_one_layer_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget with room for the largest layer has room for measuring."""
    held: list[int] = []

    class Counting(Timed):
        def allocate(self, nbytes: int) -> torch.Tensor:
            storage = super().allocate(nbytes)
            held.append(nbytes)
            weakref.finalize(storage, held.remove, nbytes)
            peaks.append(sum(held))
            return storage

    peaks: list[int] = []
    monkeypatch.setattr(manager, "device_memory_for", lambda device: Counting())
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(6)])
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), planner=lambda costs: ["DHA"] * len(costs))
    for _ in range(3):
        model(torch.randn(2, 16)).sum().backward()
        hybrid.step()
    assert len(peaks) >= 11, "each forward, and most backward passes"
    assert max(peaks) <= 2 * (16 * 16 + 16) * 4 + 64, "one is copied while one is freed"
