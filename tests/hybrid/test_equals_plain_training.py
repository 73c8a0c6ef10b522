"""Training with Hybrid gives the bits of plain training: every model, planner, reserve factor and optimizer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio.hybrid import Hybrid, manager
from fastio.hybrid.optimizer import cpu_optimizer
from fastio.hybrid.planning import costs
from hybrid_training import CLASSES, LENGTH, MODELS, OPTIMIZERS, PLANNERS, LateDeviceMemory, Trained, rotated, train

RESERVES = (0.0, 0.25, 0.5, 1.0)


@cache
def plain(model: str) -> Trained:
    return train(MODELS[model], None)


@pytest.mark.parametrize("reserve", RESERVES)
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("model", MODELS)
def test_twenty_steps_give_the_bits_of_plain_training(model: str, planner: str, reserve: float) -> None:
    plans: list[Any] = []
    hybrid = {"planner": PLANNERS[planner], "gradient_reserve": reserve}
    trained = train(MODELS[model], hybrid, during=lambda manager: plans.append(manager.plan))
    trained.assert_same(plain(model))
    assert len(set(plans)) == 1, "planned once, after the first step"
    if planner == "zero-offload":
        assert set(plans[0].modes) == {"GFGB"}
    if planner.startswith("rotated") and len(plans[0].modes) > 2:
        assert set(plans[0].modes) == {"GFGB", "DHA", "DFGB"}
    if reserve < 1:
        assert plans[0].gradients_on_host


@pytest.mark.parametrize("by", range(3))
@pytest.mark.parametrize("model", MODELS)
def test_every_use_of_a_copy_waits_for_it(model: str, by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device_memory = LateDeviceMemory()
    monkeypatch.setattr(manager, "device_memory_for", lambda device: device_memory)
    train(MODELS[model], {"planner": rotated(by), "gradient_reserve": 0.5}).assert_same(plain(model))
    assert device_memory.copies > 0


class _Around(nn.Module):
    """Parameters of its own before and behind a Linear layer's: a layer that is two ranges of host memory."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(LENGTH))
        self.linear = nn.Linear(LENGTH, CLASSES)
        self.several = nn.ParameterList([nn.Parameter(torch.randn(LENGTH)) for _ in range(2)])

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.linear(inputs * self.several[0] + self.several[1] * self.scale)
        return outputs


@pytest.mark.parametrize("mode", ["GFGB", "DFGB"])
def test_a_layer_of_two_ranges_of_memory_gives_the_plain_bits(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())
    train(_Around, {"planner": lambda costs: [mode] * len(costs)}).assert_same(train(_Around, None))


def test_chunk_is_updated_while_later_gradients_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients on the device are copied from backward on; an update waits only for its own chunk's."""
    events: list[tuple[str, int]] = []

    class Recording(LateDeviceMemory):
        def copy_to_host(self, host: torch.Tensor, device: torch.Tensor) -> Any:
            events.append(("asked", host.data_ptr()))
            arrival = super().copy_to_host(host, device)
            wait = arrival.wait
            arrival.wait = lambda: (events.append(("waited", host.data_ptr())), wait())  # type: ignore[method-assign]
            return arrival

    update = cpu_optimizer.CpuOptimizer.update

    def updated(self: cpu_optimizer.CpuOptimizer, parts: Any, states: Any) -> None:
        chosen = list(parts)
        events.extend(("updated", tensor.grad.data_ptr()) for _, tensor in chosen)
        update(self, chosen, states)

    monkeypatch.setattr(manager, "device_memory_for", lambda device: Recording())
    monkeypatch.setattr(cpu_optimizer.CpuOptimizer, "update", updated)
    monkeypatch.setattr(costs, "BUCKET", 2560)  # no parameter is larger
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), device="cpu")
    model(torch.randn(4, 7)).sum().backward()
    gradients = len(list(model.parameters()))
    assert [what for what, _ in events] == ["asked"] * gradients, "in backward"
    hybrid.step()
    later = events[gradients:]
    first = [what for what, _ in later].index("updated")
    assert 0 < first < gradients - 1, "later gradients are still being copied"
    assert later[0] == ("waited", events[0][1]), "backward ends with the last layer first"
    for position, (what, place) in enumerate(later):
        if what == "updated":
            assert ("waited", place) in later[:position]


def test_late_device_memory_detects_a_missing_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above, with a Hybrid that copies the wrong memory."""

    class Forgetful(LateDeviceMemory):
        def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> Any:
            return super().copy_to_device(device, device)

    monkeypatch.setattr(manager, "device_memory_for", lambda device: Forgetful())
    with pytest.raises(AssertionError):
        train(MODELS["mlp"], {"planner": rotated(0)}).assert_same(plain("mlp"))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_each_optimizer_gives_the_bits_of_its_own_implementation(optimizer: str) -> None:
    make = OPTIMIZERS[optimizer]
    alone = train(MODELS["transformer"], None, 8, make)
    train(MODELS["transformer"], {"planner": rotated(1), "gradient_reserve": 0.5}, 8, make).assert_same(alone)


class Mixed(nn.Module):
    """Parameters of several dtypes, with no dimensions, with no elements, and with gaps in their memory."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(7, 9, dtype=torch.float64)
        self.middle = nn.Linear(9, 11, dtype=torch.bfloat16)
        self.tail = nn.Linear(11, 5)
        self.tail.weight = nn.Parameter(torch.randn(11, 10).t()[::2])
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.nothing = nn.Parameter(torch.empty(0))
        self.phase = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.head(inputs.double()).relu().bfloat16()).float()
        return self.scale * self.tail(hidden) + (self.phase * self.phase.conj()).real


@pytest.mark.parametrize("by", range(3))
@pytest.mark.parametrize("stored", [False, True])
def test_parameters_of_unusual_layouts_give_the_plain_bits(
    stored: bool, by: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW([p for p in model.parameters() if p.numel()], lr=3e-3)

    monkeypatch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())
    settings: dict[str, Any] = {"planner": rotated(by), "gradient_reserve": 0.5}
    if stored:
        settings["optimizer_store"] = tmp_path
    train(Mixed, settings, 6, some).assert_same(train(Mixed, None, 6, some))


def test_copies_are_those_that_the_plan_orders() -> None:
    """GFGB layers are copied once per forward pass, DFGB layers only before a backward, DHA layers never."""
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    hybrid = Hybrid(model, optimizer, planner=rotated(0), device="cpu")
    inputs = torch.randn(4, 7)
    model(inputs).sum().backward()
    hybrid.step()
    assert hybrid.plan is not None
    assert hybrid.plan.modes == ("GFGB", "DHA", "DFGB", "GFGB")
    sizes = [sum(p.numel() * 4 for p in layer.parameters()) for layer in model if list(layer.parameters())]
    assert hybrid.report().layers_copied == 0
    model(inputs).sum().backward()
    assert hybrid.report().layers_copied == 3
    assert hybrid.report().bytes_copied == sizes[0] + sizes[2] + sizes[3]
    hybrid.step()
    assert hybrid.report().layers_copied == 3
    with torch.no_grad():
        model(inputs)
    assert hybrid.report().layers_copied == 5, "no backward follows"


def test_parameters_are_in_host_memory_between_passes_and_on_the_device_in_forward() -> None:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), planner="zero-offload", device="cpu")
    inputs = torch.randn(4, 7)
    at_rest = [p.data_ptr() for p in model.parameters()]
    steps = sorted(at_rest)
    assert steps[-1] - steps[0] < sum(p.numel() * 4 + 64 for p in model.parameters()), "one flat buffer"
    seen: list[int] = []
    model[0].register_forward_hook(lambda module, inputs, output: seen.append(module.weight.data_ptr()))
    for _ in range(2):
        model(inputs).sum().backward()
        assert [p.data_ptr() for p in model.parameters()] == at_rest
        hybrid.step()
    assert seen[0] == at_rest[0], "before planning"
    assert seen[1] not in at_rest
    model[3].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(inputs)
    assert [p.data_ptr() for p in model.parameters()] == at_rest


def test_gradients_in_host_memory_keep_their_address() -> None:
    torch.manual_seed(0)
    model = MODELS["mlp"]()
    hybrid = Hybrid(model, torch.optim.SGD(model.parameters(), lr=0.1), gradient_reserve=0.0, device="cpu")
    places = []
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(4, 7)).sum().backward()
        places.append([p.grad.data_ptr() for p in model.parameters() if p.grad is not None])
        hybrid.step()
    assert len(places[0]) == len(list(model.parameters()))
    assert places[0] == places[1] == places[2]
    assert hybrid.report().gradients_moved == 3 * len(places[0])
    assert hybrid.report().gradients_copied == 0
