"""Saves and restores steps: resumed training, what is in a step, which steps stay, invalid arguments."""

from __future__ import annotations

import json
import os
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trainings
from fastio.checkpoint import Checkpointer
from fastio.errors import CheckpointError
from trainings import folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.mark.parametrize("asynchronous", [True, False], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "full"])
def test_resumed_training_equals_uninterrupted_training(folder: Path, asynchronous: bool, incremental: bool) -> None:
    whole = trainings.make()
    for _ in range(12):
        trainings.train(whole)

    state = trainings.make()
    with Checkpointer(folder, asynchronous=asynchronous, incremental=incremental) as checkpointer:
        assert checkpointer.restore(into=state) is None
        assert checkpointer.latest() is None
        for step in range(7):
            trainings.train(state)
            assert checkpointer.save(step, state, {"loss": state["losses"][-1]})
    torch.manual_seed(99)
    other = trainings.make(seed=1)
    trainings.train(other)
    losses = other["losses"]
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.steps() == [4, 5, 6]
        restored = checkpointer.restore(into=other)
    assert restored is not None
    assert restored.step == 6
    assert restored.state is other
    assert restored.metadata == {"loss": state["losses"][-1]}
    assert trainings.differ(state, other) == ""
    assert other["losses"] is losses
    for _ in range(5):
        trainings.train(other)
    assert trainings.differ(whole, other) == ""


def test_full_step_loads_with_plain_torch(folder: Path) -> None:
    state = trainings.make()
    trainings.train(state)
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(3, state, {"by": "a test"})
        checkpointer.wait()
        assert sorted(os.listdir(folder_of(folder, 3))) == ["manifest.json", "state.pt"]
        path = folder_of(folder, 3) / "state.pt"
        plain = torch.load(path, weights_only=True)
        assert zipfile.ZipFile(path).testzip() is None
        restored = checkpointer.restore(3)
    assert restored is not None
    model = trainings.make(seed=5)["model"]
    model.load_state_dict(plain["model"])
    for name, tensor in state["model"].state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
        assert torch.equal(restored.state["model"][name], tensor)
    manifest = json.loads((folder_of(folder, 3) / "manifest.json").read_text())
    assert manifest["version"] == 1
    assert manifest["metadata"] == {"by": "a test"}


@pytest.mark.parametrize("options", [{}, {"incremental": True}, {"memory_budget": "32MiB"}, {"asynchronous": False}])
def test_changes_after_a_save_are_not_in_the_step(folder: Path, options: dict[str, Any]) -> None:
    # Larger than the budget, and than any block that transports write.
    state = {"large": torch.arange(20 << 20, dtype=torch.int32), "small": torch.arange(7), "list": [1, 2]}
    with Checkpointer(folder, **options) as checkpointer:
        for step in range(2):
            expected = {name: tensor.clone() for name, tensor in state.items() if isinstance(tensor, torch.Tensor)}
            checkpointer.save(step, state)
            for tensor in expected:
                state[tensor].add_(1)
            state["list"].append(3)
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert restored is not None
            assert all(torch.equal(restored.state[name], tensor) for name, tensor in expected.items())
            assert restored.state["list"] == [1, 2] + [3] * step
        assert torch.equal(torch.load(folder_of(folder, 1) / "state.pt")["large"], expected["large"])


# Which steps there are


def test_keep_and_keep_every_choose_the_steps_that_stay(folder: Path) -> None:
    with Checkpointer(folder, keep=2, keep_every=4) as checkpointer:
        for step in range(11):
            checkpointer.save(step, {"step": torch.tensor(step)})
        checkpointer.wait()
        assert checkpointer.steps() == [0, 4, 8, 9, 10]
    with Checkpointer(folder, keep=1) as checkpointer:
        assert checkpointer.steps() == [0, 4, 8, 9, 10]
        assert checkpointer.prune() == [0, 4, 8, 9]
        assert checkpointer.steps() == [10]
        assert sorted(os.listdir(folder)) == [".lock", "step-0000000010"]


def test_step_saved_after_going_back_is_the_latest(folder: Path) -> None:
    with Checkpointer(folder, keep=3) as checkpointer:
        for step in (1, 2, 3):
            checkpointer.save(step, {"branch": "old", "tensor": torch.tensor(step)})
        restored = checkpointer.restore(1)
        assert restored is not None
        checkpointer.save(2, {"branch": "new", "tensor": torch.tensor(20)})
        checkpointer.wait()
        assert checkpointer.steps() == [1, 2, 3]
        assert checkpointer.latest() == 2
        restored = checkpointer.restore()
        assert restored is not None
        assert (restored.step, restored.state["branch"]) == (2, "new")
        assert sorted(os.listdir(folder_of(folder, 2))) == ["manifest.json", "state.1.pt"]
        checkpointer.save(4, {})
        checkpointer.wait()
        assert checkpointer.steps() == [2, 3, 4]


def test_missing_step_raises_and_lists_the_steps(folder: Path) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(5, {"tensor": torch.ones(1)})
        with pytest.raises(CheckpointError, match="no step 6; there are: 5"):
            checkpointer.restore(6)
        with pytest.raises(CheckpointError, match="no step 6"):
            checkpointer.verify(6)
        assert checkpointer.verify(5) > 0


# Arguments


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0}, "keep=0"),
        ({"keep_every": 0}, "keep_every=0"),
        ({"when_busy": "merge"}, "when_busy='merge'"),
        ({"memory_budget": "much"}, "memory_budget='much' is no size"),
        ({"keep": 2.5}, "keep=2.5: expected 1 or more, or None for all"),
        ({"keep": True}, "keep=True: expected 1 or more"),
        ({"keep_every": "x"}, "keep_every='x': expected 1 or more"),
    ],
)
def test_invalid_options_raise_value_error(folder: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        Checkpointer(folder, **options)
    assert not folder.exists()


def test_invalid_arguments_raise(folder: Path) -> None:
    with Checkpointer(folder) as checkpointer:
        for step in (-1, True, 1.5, "3"):
            with pytest.raises(ValueError, match="expected an integer"):
                checkpointer.save(step, {})  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="metadata"):
            checkpointer.save(0, {}, metadata=[1])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"metadata\['tensor'\] is a Tensor, which JSON cannot hold"):
            checkpointer.save(0, {}, metadata={"tensor": torch.ones(1)})
        with pytest.raises(ValueError, match=r"metadata\['loss'\]\[1\] is nan, which JSON cannot hold: expected text"):
            checkpointer.save(0, {}, metadata={"loss": [0, float("nan")]})
        with pytest.raises(ValueError, match=r"metadata\['n'\] is an int too long to be shown, which JSON cannot"):
            checkpointer.save(0, {}, metadata={"n": 10**5000})
        itself: dict[str, Any] = {}
        itself["again"] = itself
        with pytest.raises(ValueError, match="is nested too deep for JSON, or holds itself"):
            checkpointer.save(0, {}, metadata=itself)
        for integer in (torch.tensor(3), np.int64(3)):
            with pytest.raises(ValueError, match=r"expected an integer, .*; use int\(step\)"):
                checkpointer.save(integer, {})  # type: ignore[arg-type]
            with pytest.raises(TypeError, match=r"expected an integer, .*; use int\(step\)"):
                checkpointer.restore(integer)  # type: ignore[arg-type]
        with pytest.raises(
            TypeError, match=re.escape("metadata['a'][1] has the key 3 (int), which JSON returns as text")
        ):
            checkpointer.save(0, {}, metadata={"a": [{}, {3: "three", "3": "text"}]})
        for key in (None, True, 1.5):
            with pytest.raises(TypeError, match=r"metadata has the key .*use str\(key\)"):
                checkpointer.save(0, {}, metadata={key: 1})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match=re.escape("metadata['betas'] is a tuple, which JSON returns as a list")):
            checkpointer.save(0, {}, metadata={"betas": (0.9, 0.95)})
        with pytest.raises((pickle.PicklingError, AttributeError)):
            checkpointer.save(0, {"function": lambda: None})
        assert checkpointer.steps() == []
    with pytest.raises(CheckpointError, match="closed"):
        checkpointer.save(0, {})
    with pytest.raises(CheckpointError, match="no such folder"):
        Checkpointer(folder / "none", read_only=True)
    with (
        Checkpointer(folder, read_only=True) as reader,
        pytest.raises(CheckpointError, match="read_only"),
    ):
        reader.save(0, {})


@pytest.mark.parametrize("location", [{"cuda:0": "cpu"}, lambda storage, _: storage], ids=["dict", "function"])
def test_map_location_that_is_not_a_device_raises(tmp_path: Path, location: object) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"a": torch.ones(3)})
        with pytest.raises(TypeError, match=f"is a {type(location).__name__}: expected one device"):
            checkpointer.restore(map_location=location)
