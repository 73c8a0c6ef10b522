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
    named = pytest.raises(TypeError, match=r"state\['b'\]\['lock'\] is a lock, and cannot be saved")
    with fastio.Checkpointer(tmp_path) as checkpoints, named:
        checkpoints.save(1, state)


def test_wrong_arguments_are_refused_when_the_checkpointer_is_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    wrong: Any = "fast"
    with pytest.raises(ValueError, match="policy='fast': expected"):
        fastio.Checkpointer(tmp_path / "new", policy=wrong)
    with pytest.raises(ValueError, match="folder='': expected the path of a folder"):
        fastio.Checkpointer("")
    for folder in ("file", "file/deeper"):
        with pytest.raises(fastio.TransferError, match="expected a folder, found a file; name another folder"):
            fastio.Checkpointer(tmp_path / folder)
    with pytest.raises(fastio.CheckpointError, match="expected a folder of checkpoints, found a file"):
        fastio.Checkpointer(tmp_path / "file", read_only=True)
    with pytest.raises(fastio.FolderMissingError, match="the folder to make 'run' in does not exist; make it first"):
        fastio.Checkpointer(tmp_path / "mistyped" / "run")
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "option",
    [
        {"keep": 5}, {"keep": None}, {"keep_every": 2}, {"asynchronous": False}, {"memory_budget": "1GiB"},
        {"incremental": True}, {"when_busy": "skip"}, {"read_back": True},
    ],
)  # fmt: skip
def test_a_reader_takes_no_option_of_saves(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(option))}=.*: only saves use it"):
        fastio.Checkpointer(tmp_path, read_only=True, **option)


@pytest.mark.parametrize("into", [5, [1], "text", None])
def test_a_tree_of_another_kind_is_refused(tmp_path: Path, into: Any) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": 1})
        if into is None:
            assert checkpoints.restore(into=None)
            return
        with pytest.raises(fastio.CheckpointError, match=r"state is .*, but a dict was saved; expected into= to have"):
            checkpoints.restore(into=into)
        checkpoints.save(1, [1, 2])
        with pytest.raises(fastio.CheckpointError, match=r"but a list was saved"):
            checkpoints.restore(into={"a": 1})


@pytest.mark.parametrize("step", ["0", "latest", 0.0, True])
def test_step_that_is_no_integer_is_a_type_error(tmp_path: Path, step: Any) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": torch.zeros(2)})
        for call in checkpoints.restore, checkpoints.verify:
            with pytest.raises(TypeError, match=f"step={step!r} is a .*: expected an integer"):
                call(step)


@pytest.mark.parametrize("state", [{"a": torch.zeros(2)}, torch.nn.Linear(2, 2)], ids=["dict", "module"])
def test_a_state_in_the_place_of_the_step_is_told_where_it_belongs(tmp_path: Path, state: Any) -> None:
    cure = "; a state is the second argument of save, and into= of restore"
    with fastio.Checkpointer(tmp_path) as checkpoints:
        with pytest.raises(ValueError, match=cure):
            checkpoints.save(state, 0)
        with pytest.raises(TypeError, match=cure):
            checkpoints.restore(state)
        assert checkpoints.steps() == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named(tmp_path: Path) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": torch.zeros(2)})
        with pytest.raises(fastio.UnsupportedError, match=r"map_location='cuda': .*such as 'cpu'"):
            checkpoints.restore(map_location="cuda")
        with pytest.raises(fastio.UnsupportedError, match=r"map_location='mps': torch cannot use mps devices here"):
            checkpoints.restore(map_location="mps")


def test_a_damaged_step_does_not_name_an_argument_of_other_loads(tmp_path: Path) -> None:
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"a": torch.zeros(20_000)})
        checkpoints.wait()
        path = tmp_path / "step-0000000000" / "state.pt"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
        with pytest.raises(fastio.CorruptFileError, match=r"restore it from a copy$"):
            checkpoints.verify(0)
        with (
            pytest.raises(fastio.CheckpointError, match="all steps are damaged"),
            pytest.warns(RuntimeWarning, match=r"step 0 is skipped: .*'a'.*restore it from a copy$"),
        ):
            checkpoints.restore()


def test_state_that_does_not_fit_is_told_with_the_cure(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    with fastio.Checkpointer(tmp_path) as checkpoints:
        checkpoints.save(0, {"model": model, "losses": [1.0]})
        tree = r"(?s)state, a \w+, cannot.*; pass as into= the tree that was saved: {'model': \.\.\., 'losses': \.\.\.}"
        with pytest.raises(RuntimeError, match=f"{tree}$"):
            checkpoints.restore(into=model)
        with pytest.raises(KeyError, match="pass as into= the tree"):
            checkpoints.restore(into=torch.optim.SGD(model.parameters()))
        with pytest.raises(RuntimeError, match=r"'model'\], a Linear, .*shape \(2, 3\), saved.*; expected into= to"):
            checkpoints.restore(into={"model": torch.nn.Linear(3, 2)})
