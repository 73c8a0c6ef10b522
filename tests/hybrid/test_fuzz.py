"""Random training loops with random plans, with copies made as late as allowed."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fastio.hybrid import Hybrid, manager
from fastio.hybrid.optimizer import ssd_states
from hybrid_training import MODELS, LateDeviceMemory, adamw, assert_same_bits, batch, cloned, one_thread

ACTIONS = (
    "backward",
    "backward twice",
    "evaluate",
    "forward only",
    "clip",
    "write gradients",
    "write parameters",
    "load older",
    "step",
    "step",
    "zero",
    "zero in place",
)
loops = st.lists(st.sampled_from(ACTIONS), min_size=4, max_size=25)
modes = st.lists(st.sampled_from(["GFGB", "DHA", "DFGB"]), min_size=20, max_size=20)


def run(name: str, actions: list[str], hybrid: dict[str, Any] | None) -> Any:
    torch.manual_seed(0)
    model = MODELS[name]()
    optimizer = adamw(model)
    stepper: Any = optimizer if hybrid is None else Hybrid(model, optimizer, device="cpu", **hybrid)
    older = cloned([model.state_dict(), optimizer.state_dict()])
    torch.manual_seed(1)
    said = []

    def loss() -> torch.Tensor:
        inputs, labels = batch(model)
        return nn.functional.cross_entropy(model(inputs), labels)

    for action in [*actions, "backward", "step"]:
        if action == "backward":
            value = loss()
            value.backward()
            said.append(value.item())
        elif action == "backward twice":
            value = loss()
            value.backward(retain_graph=True)
            value.backward()
        elif action in ("evaluate", "forward only"):
            model.train(action != "evaluate")
            with torch.set_grad_enabled(action != "evaluate"):
                said.append(loss().item())
            model.train()
        elif action == "clip":
            said.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        elif action == "write gradients":
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.data.neg_()
        elif action == "write parameters":
            for parameter in model.parameters():
                parameter.data.mul_(0.9)
        elif action == "load older":
            model.load_state_dict(older[0])
            optimizer.load_state_dict(older[1])
        elif action == "step":
            stepper.step()
            older = cloned([model.state_dict(), optimizer.state_dict()])
        else:
            optimizer.zero_grad(set_to_none=action == "zero")
    return said, cloned([model.state_dict(), optimizer.state_dict()])


@pytest.mark.parametrize("name", MODELS)
@given(loops, modes, st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.booleans())
@settings(deadline=None, max_examples=12)
def test_random_loops_give_the_plain_bits(
    name: str, actions: list[str], plan: list[str], reserve: float, stored: bool
) -> None:
    with one_thread(), pytest.MonkeyPatch.context() as patch, TemporaryDirectory(dir=Path.cwd()) as folder:
        patch.setattr(manager, "device_memory_for", lambda device: LateDeviceMemory())
        patch.setattr(ssd_states.SsdStates.__init__, "__defaults__", (4096,))
        store = {"optimizer_store": folder} if stored else {}
        planned = {"planner": lambda costs: plan[: len(costs)], "gradient_reserve": reserve}
        assert_same_bits(run(name, actions, {**planned, **store}), run(name, actions, None))
