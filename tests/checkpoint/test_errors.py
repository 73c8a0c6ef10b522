"""Errors of a Checkpointer name the cause; tensors without a shape are replaced, not copied into."""

from __future__ import annotations

import os
import shutil
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio


def _unlink_lock(folder: Path) -> None:
    os.unlink(folder / ".lock")


@pytest.mark.parametrize("remove", [shutil.rmtree, _unlink_lock])
def test_writer_whose_lock_was_removed_raises_on_save_and_prune(tmp_path: Path, remove: Callable[[Path], Any]) -> None:
    folder = tmp_path / "run"
    with fastio.Checkpointer(folder, keep=1) as first:
        first.save(0, {"a": torch.zeros(2)})
        first.wait()
        remove(folder)
        with fastio.Checkpointer(folder, keep=1) as second:
            second.save(10, {"a": torch.ones(2)})
            second.wait()
            for call in lambda: first.save(1, {"a": torch.zeros(2)}), first.prune:
                with pytest.raises(fastio.CheckpointError, match=r"\.lock was removed or replaced.*make another"):
                    call()
            assert torch.equal(second.restore(10).state["a"], torch.ones(2))


@pytest.mark.parametrize(
    ("saved", "live", "problem"),
    [
        (torch.ones(2), torch.zeros(2, device="meta"), r"state\['a'\] is on meta.*restore without into="),
        (torch.zeros(2, device="meta"), torch.ones(2), r"state\['a'\] is on cpu.*restore without into="),
        (torch.eye(2).to_sparse(), torch.ones(2, 2), r"state\['a'\] cannot take what was saved"),
    ],
)
def test_live_tensor_that_cannot_take_the_values_raises_and_is_named(
    tmp_path: Path, saved: torch.Tensor, live: torch.Tensor, problem: str
) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": saved})
        with pytest.raises(fastio.CheckpointError, match=problem):
            checkpoints.restore(into={"a": live}, weights_only=False)


def _nested(layout: torch.layout, value: float) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.full((2,), value), torch.full((3,), value)], layout=layout)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensor_is_replaced_by_the_saved_one(tmp_path: Path, layout: torch.layout) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"n": _nested(layout, 1.0), "w": torch.ones(3)})
        live: dict[str, Any] = {"n": _nested(layout, 2.0), "w": torch.zeros(3)}
        weight = live["w"]
        checkpoints.restore(into=live, weights_only=False)
        assert [one.tolist() for one in live["n"].unbind()] == [[1.0] * 2, [1.0] * 3]
        assert live["w"] is weight
        assert torch.equal(weight, torch.ones(3))


@pytest.mark.filterwarnings("ignore")
def test_lazy_parameter_is_replaced_by_the_saved_one(tmp_path: Path) -> None:
    lazy = torch.nn.LazyLinear(2)
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"u": lazy.state_dict(), "w": torch.ones(3)})
        live = {"u": torch.nn.LazyLinear(2).state_dict(), "w": torch.zeros(3)}
        checkpoints.restore(into=live, weights_only=False)
        assert torch.equal(live["w"], torch.ones(3))
        assert isinstance(live["u"]["weight"], torch.nn.parameter.UninitializedParameter)


def test_what_cannot_be_saved_is_named_in_a_state_that_holds_itself(tmp_path: Path) -> None:
    state: dict[str, Any] = {"w": torch.ones(3)}
    state["b"] = {"a": state, "lock": threading.Lock()}
    named = pytest.raises(TypeError, match=r"state\['b'\]\['lock'\], a lock, cannot be saved")
    with fastio.Checkpointer(tmp_path) as checkpoints, named:
        checkpoints.save(1, state)
