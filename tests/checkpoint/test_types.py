"""Restored states equal those of torch.save and torch.load: types, values, sharing."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.checkpoint import Checkpointer
from graphs import differ
from states import STATES, ramp

# torch's warnings about beta and deprecated kinds of tensors.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor"),
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated"),
]

WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {"asynchronous": False},
    "incremental": {"incremental": True},
    "in pieces": {"memory_budget": "32MiB"},
}


def by_torch(state: Any, weights_only: bool) -> Any:
    """Return what torch.load makes of torch.save's file, or the error that it raises."""
    written = io.BytesIO()
    torch.save(state, written)
    written.seek(0)
    try:
        return torch.load(written, weights_only=weights_only)
    except Exception as error:
        return error


def expected_of(state: Any, name: str, weights_only: bool) -> Any:
    """Return what torch.load makes; the state itself for a type that it cannot load."""
    found = by_torch(state, weights_only)
    # torch.load calls the class of such a dict with arguments that it does not accept.
    return state if isinstance(found, TypeError) and name == "a dict that grows" else found


@pytest.mark.parametrize("name", STATES)
def test_restored_state_equals_torch_loads(tmp_path: Path, name: str) -> None:
    state = STATES[name](1)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, state)
        assert differ(state, STATES[name](1)) == "", "saving changed the state"
        for weights_only in (True, False):
            expected = expected_of(state, name, weights_only)
            if isinstance(expected, Exception):
                with pytest.raises(pickle.UnpicklingError, match="weights_only=False"):
                    checkpointer.restore(weights_only=weights_only)
                continue
            restored = checkpointer.restore(weights_only=weights_only)
            assert restored is not None
            assert differ(restored.state, expected) == ""


@pytest.mark.parametrize("name", STATES)
def test_live_state_of_the_same_type_gets_the_saved_values(tmp_path: Path, name: str) -> None:
    live = {"state": STATES[name](2), "other": torch.zeros(5)}
    held = live["state"]
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"state": STATES[name](1), "other": ramp(1, 5)})
        restored = checkpointer.restore(into=live, weights_only=False)
    assert restored is not None
    assert restored.state is live
    assert differ(live, {"state": STATES[name](1), "other": ramp(1, 5)}, into=True) == ""
    if type(held) in (dict, list) or isinstance(held, torch.Tensor):
        assert live["state"] is held


@pytest.mark.parametrize("into", [False, True], ids=["anew", "into"])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_saving_restores_all_types(tmp_path: Path, way: str, into: bool) -> None:
    def make(seed: int) -> dict[str, Any]:
        return {name: one(seed) for name, one in STATES.items()} | {"large": torch.full((33 << 20,), seed).byte()}

    with Checkpointer(tmp_path, **WAYS[way]) as checkpointer:
        state = make(1)
        if way == "incremental":
            state["turn"] = torch.zeros(3)
            checkpointer.save(0, state)
        state["turn"] = torch.ones(3)
        checkpointer.save(1, state)
        live = make(2) | {"turn": torch.zeros(3)} if into else None
        restored = checkpointer.restore(into=live, weights_only=False)
    assert restored is not None
    assert differ(restored.state, state, into=into) == ""


def test_a_storage_that_ends_within_an_element_is_restored(tmp_path: Path) -> None:
    odd = torch.arange(1001).to(torch.uint8)[8:408].view(torch.float32)
    with fastio.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"odd": odd})
        checkpointer.wait()
        restored = checkpointer.restore()
    assert restored is not None
    assert torch.equal(restored.state["odd"].view(torch.uint8), odd.view(torch.uint8))
