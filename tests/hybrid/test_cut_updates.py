"""Parameters larger than a bucket are copied and updated in pieces: the bits of plain training, and its state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from fastio.hybrid import Hybrid, manager
from fastio.hybrid.optimizer import cpu_optimizer
from fastio.hybrid.planning import costs
from hybrid_training import MODELS, OPTIMIZERS, LateDeviceMemory, assert_same_bits, cloned, one_thread, rotated, train

BUCKET = 256  # bytes: most of the models' parameters are larger


@pytest.fixture(autouse=True, params=["two buffers", "late copies"])
def _small_buckets(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(costs, "BUCKET", BUCKET)
    if request.param == "late copies":
        monkeypatch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())
    with one_thread():
        yield


@pytest.mark.parametrize("model", ["cnn", "transformer"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_pieces_have_the_bits_of_the_whole(optimizer: str, model: str) -> None:
    make = OPTIMIZERS[optimizer]
    settings = {"planner": rotated(1), "gradient_reserve": 0.5}
    train(MODELS[model], settings, 5, make).assert_same(train(MODELS[model], None, 5, make))


def test_a_piece_is_updated_while_later_ones_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, int]] = []
    update = cpu_optimizer.CpuOptimizer.update

    def updated(self: cpu_optimizer.CpuOptimizer, parts: Any, states: Any) -> None:
        chosen = list(parts)
        events.extend(("updated", tensor.grad.data_ptr()) for _, tensor in chosen)
        update(self, chosen, states)

    class Recording(LateDeviceMemory):
        def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> Any:
            arrival = super().copy_to_host(host, device)
            wait = arrival.wait
            arrival.wait = lambda: (events.append(("waited", host.data_ptr())), wait())  # type: ignore[method-assign]
            return arrival

    monkeypatch.setattr(manager, "device_memory_for", lambda device: Recording())
    monkeypatch.setattr(cpu_optimizer.CpuOptimizer, "update", updated)
    model = nn.Linear(16, 16, bias=False)
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), device="cpu")
    for step in range(2):
        model.zero_grad()
        model(torch.randn(2, 16)).sum().backward()
        events.clear()
        hybrid.step()
        host = hybrid._gradients.by_parameter[model.weight].host.data_ptr()
        pieces = range(host, host + 16 * 16 * 4, BUCKET)
        if step == 0:
            assert events == [*(("waited", piece) for piece in pieces), ("updated", host)], "it makes the state"
        else:
            later = list(dict.fromkeys(events))
            assert later == [(what, piece) for piece in pieces for what in ("waited", "updated")]


def test_state_stays_the_same_objects_and_unusual_layouts_are_updated_whole() -> None:
    outcomes = []
    for hybrid in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(16, 16)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        stepper: Any = Hybrid(model, optimizer, device="cpu") if hybrid else optimizer
        objects = []
        for step in range(4):
            if step == 2:  # a state loaded from elsewhere may have other strides
                states = optimizer.state_dict()
                for state in states["state"].values():
                    if state["exp_avg"].dim() == 2:
                        state["exp_avg"] = state["exp_avg"].t().contiguous().t()
                optimizer.load_state_dict(states)
                assert optimizer.state[model.weight]["exp_avg"].stride() == (1, 16)
            optimizer.zero_grad()
            model(torch.randn(2, 16)).square().sum().backward()
            stepper.step()
            objects.append([id(value) for value in optimizer.state[model.weight].values()])
        assert objects[0] == objects[1]
        assert objects[2] == objects[3]
        outcomes.append((cloned(model.state_dict()), cloned(optimizer.state_dict())))
    assert_same_bits(*outcomes)
