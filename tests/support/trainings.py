"""States that differ at every step, for tests of checkpoints: a small training, and tensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from fastio.checkpoint import RandomState


class Loader:
    """A data loader with a position in its state dict; it draws from torch's generator."""

    def __init__(self) -> None:
        self.drawn = 0

    def draw(self) -> torch.Tensor:
        self.drawn += 1
        return torch.randn(4, 24)

    def state_dict(self) -> dict[str, Any]:
        return {"drawn": self.drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.drawn = state["drawn"]


def make(seed: int = 0, width: int = 24) -> dict[str, Any]:
    """The state of a training before its first step: model, optimizer, scheduler, random state, loader."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(24, width), nn.BatchNorm1d(width), nn.Dropout(0.3), nn.Linear(width, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return {
        "model": model,
        "optimizer": optimizer,
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9),
        "random": RandomState(),
        "loader": Loader(),
        "losses": [],
        "step": 0,
    }


def with_history(state: dict[str, Any]) -> dict[str, Any]:
    """The state plus a large tensor that never changes, and one that changes in one element per step, from its end."""
    return state | {"still": torch.arange(1 << 17), "history": torch.zeros(1 << 15)}


def train(state: dict[str, Any]) -> None:
    """Run one training step."""
    state["optimizer"].zero_grad()
    loss = state["model"](state["loader"].draw()).square().mean()
    loss.backward()
    state["optimizer"].step()
    state["scheduler"].step()
    state["losses"].append(loss.item())
    if "history" in state:
        state["history"][-1 - state["step"]] = loss.item()
    state["step"] += 1


def differ(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The first difference between two trainings, bit for bit, or an empty string."""
    return _differ(_captured(one), _captured(other), "")


def _captured(state: dict[str, Any]) -> Any:
    kept = {key: value for key, value in state.items() if key != "random"}
    return {key: value.state_dict() if hasattr(value, "state_dict") else value for key, value in kept.items()}


def _differ(one: Any, other: Any, path: str) -> str:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
        return "" if same else path
    if type(one) is not type(other):
        return f"{path}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, dict):
        if list(one) != list(other):
            return f"{path}: keys {list(one)} and {list(other)}"
        found = (_differ(value, other[key], f"{path}.{key}") for key, value in one.items())
    elif isinstance(one, (list, tuple)):
        if len(one) != len(other):
            return f"{path}: {len(one)} and {len(other)} entries"
        found = (_differ(value, other[at], f"{path}.{at}") for at, value in enumerate(one))
    else:
        return "" if one == other else f"{path}: {one} and {other}"
    return next((text for text in found if text), "")


def state_of(step: int) -> dict[str, Any]:
    """The state of a step; most of its bytes are the same for all steps."""
    generator = torch.Generator().manual_seed(7)
    fixed = torch.randint(0, 256, (40_000,), dtype=torch.uint8, generator=generator)
    return {"fixed": fixed, "moving": torch.full((3_000,), float(step)), "tiny": torch.tensor(step), "step": step}


def is_of(state: dict[str, Any], step: int) -> bool:
    """Whether a state equals :func:`state_of` that step."""
    expected = state_of(step)
    return all(torch.equal(state[n], expected[n]) for n in ("fixed", "moving", "tiny")) and state["step"] == step


def folder_of(folder: Path, step: int) -> Path:
    """The Checkpointer's folder of a step."""
    return folder / f"step-{step:010d}"
