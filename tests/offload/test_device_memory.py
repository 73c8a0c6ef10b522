"""Training larger than the memory of an accelerator, beside plain training with enough."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from fastio import devices
from fastio.offload.manager import Offload
from fastio.offload.planning.schedule import Schedule
from slow_store import SlowStore

pytestmark = [pytest.mark.simulated, pytest.mark.slow]


def peak_after(train: Any, *given: Any) -> tuple[Any, int]:
    """Return what a training returns, and the most bytes that it reserved."""
    gc.collect()
    torch.simulated.empty_cache()
    torch.simulated.reset_peak_memory_stats(0)
    return train(*given), torch.simulated.max_memory_reserved(0)


@contextlib.contextmanager
def limited_to(nbytes: int) -> Iterator[None]:
    gc.collect()
    torch.simulated.empty_cache()
    simulated.configure(0, memory_limit=nbytes)
    try:
        yield
    finally:
        simulated.configure(0, memory_limit=16 << 30)


def transformer(layers: int) -> nn.Module:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def perceptron(depth: int = 60) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(depth) for layer in (nn.Linear(64, 64), nn.Tanh())])


def train(make: Any, shape: tuple[int, ...], around: Any, steps: int = 5) -> list[torch.Tensor]:
    """Return the parameters after some steps; the fourth one is the first that a plan decides."""
    model = make().to("simulated")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to("simulated")
    torch.simulated.manual_seed(7)
    for _ in range(steps):
        optimizer.zero_grad()
        with around:
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        del loss
    return [parameter.detach().cpu() for parameter in model.parameters()]


# Each operation of the simulated accelerator takes milliseconds: by night, a deeper network.
@pytest.mark.parametrize("layers", [8, pytest.param(24, marks=pytest.mark.nightly)])
def test_a_transformer_trains_in_half_of_the_memory(tmp_path: Path, layers: int) -> None:
    make, shape = partial(transformer, layers), (8, 64, 64)
    plain, need = peak_after(train, make, shape, contextlib.nullcontext())
    with limited_to(need // 2), pytest.raises(torch.OutOfMemoryError):
        train(make, shape, contextlib.nullcontext())
    offload = Offload(store=tmp_path, budget=need // 4)
    with limited_to(need // 2):
        mine = train(make, shape, offload)
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    assert offload.report().planned is not None
    assert offload.counts.refused == offload.counts.retried == 0
    offload.close()


def test_ten_times_the_batch_trains_in_the_same_memory(tmp_path: Path) -> None:
    rows = 256
    _, need = peak_after(train, perceptron, (rows, 64), contextlib.nullcontext(), 3)
    plain = train(perceptron, (10 * rows, 64), contextlib.nullcontext(), 3)
    offload = Offload(store=tmp_path, policy="all", budget=0)
    with limited_to(need):
        mine = train(perceptron, (10 * rows, 64), offload, 3)
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    offload.close()


def test_twelve_times_the_batch_trains_with_no_budget_given(tmp_path: Path) -> None:
    """One Offload: at plain training's batch everything stays, and the larger batch is planned before it overflows."""
    rows, deep = 512, partial(perceptron, 120)
    _, need = peak_after(train, deep, (rows, 64), contextlib.nullcontext(), 3)
    plain = train(deep, (12 * rows, 64), contextlib.nullcontext(), 5)
    offload = Offload(store=tmp_path)
    with limited_to(need + (2 << 20)):  # room for what the profiled passes move
        train(deep, (rows, 64), offload, 5)
        small = offload.report()
    with limited_to(need):
        mine = train(deep, (12 * rows, 64), offload, 5)
    report = offload.report()
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    assert small.planned is not None
    assert report.planned is not None
    assert report.fit is not None
    assert len(small.planned.selected) < len(report.planned.selected)
    assert report.fit.limit <= need
    assert report.fit.others + report.fit.reserve + report.fit.budget == report.fit.limit
    assert f"to fit simulated:0: of {report.fit.limit / 2**20:.1f} MiB" in str(report)
    assert report.tightened == 0
    offload.close()


def test_what_grows_beside_a_training_makes_its_budget_smaller(tmp_path: Path) -> None:
    shape = (2048, 64)
    offload = Offload(store=tmp_path)
    with limited_to(96 << 20):
        train(perceptron, shape, offload, 4)
        before = offload.report().fit
        beside = torch.zeros(24 << 20, dtype=torch.uint8, device="simulated")
        train(perceptron, shape, offload, 2)
        after = offload.report().fit
        del beside
    assert before is not None
    assert after is not None
    assert after.others - before.others >= 24 << 20
    assert after.budget < before.budget
    offload.close()


class LateWrites(SlowStore):
    """Writes only what is waited for, whatever was issued before."""

    def wait(self, index: int) -> None:
        for due in [one for one in self._under_way if one[1].index == index]:
            self._under_way.remove(due)
            self._do(due[1])
        assert self.is_done(index)


def test_what_a_store_still_writes_of_the_step_before_is_nothing_that_grew() -> None:
    found = []
    for store in (SlowStore(0), LateWrites(1 << 30)):
        offload = Offload(store=store)
        with limited_to(96 << 20):
            train(perceptron, (2048, 64), offload, 4)
            found.append(offload.report().fit)
        offload.close()
    assert found[0] is not None
    assert found[0] == found[1]


class Dropping(nn.Module):
    """With random numbers, and with buffers that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.1)) for _ in range(24)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def stepping(steps: int, offload: Any, shrink: int = 0) -> list[torch.Tensor]:
    """Train by closures; before the last step, let the device have only ``shrink`` bytes, if that is not 0."""
    model = Dropping().to("simulated")
    manager = offload(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.randn((4096, 64), generator=torch.Generator().manual_seed(1)).to("simulated")
    torch.simulated.manual_seed(7)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for step in range(steps):
        if shrink and step == steps - 1:
            torch.simulated.empty_cache()
            simulated.configure(0, memory_limit=shrink)
        closure() if manager is None else manager.step(closure)
        optimizer.step()
    return [each.detach().cpu() for each in (*model.parameters(), *model.buffers())]


def test_a_step_that_runs_out_of_memory_runs_again_with_a_tighter_plan(tmp_path: Path) -> None:
    plain, need = peak_after(stepping, 5, lambda model: None)
    made: list[Offload] = []

    def offload(model: nn.Module) -> Offload:
        made.append(Offload(model, store=tmp_path))
        return made[0]

    with limited_to(2 * need):
        mine = stepping(5, offload, shrink=need * 3 // 4)
    assert all(torch.equal(one, other) for one, other in zip(mine, plain, strict=True))
    report = made[0].report()
    assert report.tightened == 1
    assert "memory ran out once" in str(report)
    made[0].close()


def test_an_error_that_an_offload_answered_tightens_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [0]
    monkeypatch.setattr(type(devices.of("simulated")), "out_of_memory_errors", lambda *_: errors[0])
    model, x = perceptron().to("simulated"), torch.randn(1024, 64).to("simulated")
    one, other = Offload(store=tmp_path), Offload(store=tmp_path)

    def step(offload: Offload, fails: bool = False) -> None:
        with offload:
            loss = model(x).square().mean()
            if fails:
                errors[0] += 1
                raise torch.OutOfMemoryError("no room")
        loss.backward()

    for _ in range(4):
        step(one)
        step(other)
    with pytest.raises(torch.OutOfMemoryError):
        step(one, fails=True)
    step(other)
    assert (one.report().tightened, other.report().tightened) == (1, 0)
    errors[0] += 1  # in a backward pass: it may be any one's
    step(other)
    step(one)
    assert (one.report().tightened, other.report().tightened) == (2, 1)
    one.close()
    other.close()


def test_a_step_that_no_plan_helps_raises_its_error(tmp_path: Path) -> None:
    _, need = peak_after(stepping, 2, lambda model: None)
    made: list[Offload] = []

    def offload(model: nn.Module) -> Offload:
        made.append(Offload(model, store=tmp_path))
        return made[0]

    with limited_to(2 * need), pytest.raises(torch.OutOfMemoryError, match=r"step twice, .* with a smaller budget"):
        stepping(5, offload, shrink=need // 12)
    assert made[0].report().tightened > 0
    made[0].close()


def test_a_forward_pass_that_ran_out_of_memory_can_be_repeated(tmp_path: Path) -> None:
    _, need = peak_after(train, perceptron, (2048, 64), contextlib.nullcontext(), 2)
    model, x = perceptron().to("simulated"), torch.randn(2048, 64).to("simulated")
    offload = Offload(store=tmp_path)

    def step() -> None:
        with offload:
            loss = model(x).square().mean()
        loss.backward()

    with limited_to(2 * need):
        for _ in range(4):
            step()
        assert offload.report().planned == Schedule((), 0.0, 0.0, "fits")
        torch.simulated.empty_cache()
        simulated.configure(0, memory_limit=need * 3 // 4)
        with pytest.raises(torch.OutOfMemoryError):
            step()
        gc.collect()
        step()
    planned = offload.report().planned
    assert planned is not None
    assert planned.selected
    offload.close()
