"""A Checkpointer of several ranks: all of each rank's state comes back, to any number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import changing_tasks
import fastio
import step_tasks
from commands import run
from ranks import Ranks


@pytest.mark.parametrize(
    ("kind", "count", "options"),
    [
        ("fsdp", 2, {}),
        ("fsdp", 2, {"memory_budget": 1}),
        ("fsdp", 2, {"incremental": True}),
        ("fsdp", 2, {"asynchronous": False, "read_back": True}),
        ("ddp", 2, {}),
        ("tp", 2, {}),
        ("hsdp", 4, {}),
    ],
)
def test_each_rank_gets_its_own_state_back(
    ranks: Ranks, tmp_path: Path, kind: str, count: int, options: dict[str, Any]
) -> None:
    saved = ranks.run(step_tasks.save, str(tmp_path / "run"), kind, count, 7, options)
    restored = ranks.run(step_tasks.restore, str(tmp_path / "run"), kind, count, 7)
    assert restored[:count] == saved[:count]
    assert saved[0] != saved[1]


@pytest.mark.parametrize(
    ("kind", "count", "other", "later"),
    [
        ("fsdp", 2, "fsdp", 4),
        ("fsdp", 4, "fsdp", 2),
        ("fsdp", 2, "fsdp", 1),
        ("fsdp", 2, "tp", 2),
        ("hsdp", 4, "fsdp", 2),
        ("fsdp", 2, "one", 1),
        ("fsdp", 1, "fsdp", 2),
        ("fsdp", 1, "one", 1),
    ],
)
def test_another_number_of_ranks_restores(
    ranks: Ranks, tmp_path: Path, kind: str, count: int, other: str, later: int
) -> None:
    saved = ranks.run(step_tasks.save, str(tmp_path / "run"), kind, count, 3)
    expected = [{n: value for n, value in one.items() if n.split(".")[1] in step_tasks.SHARED} for one in saved]
    for steps in (0, 1):  # with and without a state of the optimizer
        restored = ranks.run(step_tasks.reshard, str(tmp_path / "run"), other, later, 3, steps)
        assert restored[:later] == (expected[:count] if count == later else [expected[0]] * later)


@pytest.mark.parametrize("kind", ["fsdp", "tp"])
def test_ranks_restore_a_step_of_one_process(ranks: Ranks, tmp_path: Path, kind: str) -> None:
    saved = ranks.run(step_tasks.save_one, str(tmp_path / "run"), 3)[0]
    restored = ranks.run(step_tasks.reshard, str(tmp_path / "run"), kind, 2, 3)
    assert restored[:2] == [saved] * 2


def test_one_process_restores_whole_tensors_without_torch_distributed(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run(step_tasks.save, str(tmp_path / "run"), "fsdp", 2, 3)[0]
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        restored = checkpointer.restore()
        assert restored is not None
        found = step_tasks.whole({name: restored.state[name] for name in step_tasks.SHARED})
        assert found == {name: value for name, value in saved.items() if name.split(".")[1] in step_tasks.SHARED}
        assert type(restored.state["generator"]) is torch.Generator
        model = step_tasks.network(5)
        assert checkpointer.restore(into={"model": model}) is not None
        for name, tensor in model.state_dict().items():
            assert tensor.tolist() == saved[f".model.{name}"]


def test_torch_loads_a_step(ranks: Ranks, tmp_path: Path) -> None:
    saved = ranks.run(step_tasks.save, str(tmp_path / "run"), "fsdp", 2, 3)[0]
    step = str(tmp_path / "run" / "step-0000000003")
    for count in (2, 4):
        for loaded in ranks.run(step_tasks.torch_load, step, "fsdp", count, 3)[:count]:
            assert loaded == {name: saved[name] for name in loaded}
            assert len(loaded) > 20


def test_command_knows_steps_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    saved = ranks.run(step_tasks.save, str(folder), "fsdp", 2, 3)[0]
    step = folder / "step-0000000003"
    for path in (folder, step):
        run("verify", path)
    assert "fastio inspect" in run("inspect", folder).output
    assert "model.0.weight" in run("inspect", step).output
    run("convert", step, tmp_path / "model.safetensors", "--key", "model")
    for name, tensor in fastio.load_file(tmp_path / "model.safetensors").items():
        assert tensor.tolist() == saved[f".model.{name}"]
    assert "it is a step of several ranks" in run("diff", folder, folder, status=2).output
    (data,) = step.glob("__1_*")
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    run("verify", folder, status=1)


def test_one_process_replaces_a_step_of_ranks(ranks: Ranks, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ranks.run(step_tasks.save, str(folder), "fsdp", 2, 3)
    with fastio.Checkpointer(folder) as checkpointer:
        checkpointer.save(3, {"weight": torch.ones(5)})
        checkpointer.wait()
        assert {path.name for path in (folder / "step-0000000003").iterdir()} == {"manifest.json", "state.pt"}
        restored = checkpointer.restore()
        assert restored is not None
        assert restored.state["weight"].tolist() == [1] * 5
    ranks.run(step_tasks.save, str(folder), "fsdp", 2, 3)
    names = sorted(path.name.split("_")[2] or path.name for path in (folder / "step-0000000003").glob("__*"))
    assert names == ["0", "1"]
    assert not (folder / "step-0000000003" / "state.pt").exists()


def test_tensors_over_one_array_are_saved_whole(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(step_tasks.over_one_array, str(tmp_path / "run"))[:2] == [([0, 1], [0, 1, 2, 3])] * 2


def test_tensors_that_share_memory_get_their_values_or_none(ranks: Ranks, tmp_path: Path) -> None:
    """Tensors that overlap in another way than those that were saved are refused, and expanded ones are filled."""
    answers = ranks.run(step_tasks.into_shared_memory, str(tmp_path / "run"))[:2]
    assert answers[0] == answers[1]
    (same, apart, text), expanded = answers[0]
    assert same == ([0, 1, 2, 3], [2, 3, 4, 5])
    assert apart == [9] * 7
    assert "share a part of their memory" in text
    assert expanded == [8] * 3


@pytest.mark.parametrize("options", [{}, {"when_busy": "queue"}])
def test_each_step_has_the_state_of_its_time(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    """States that differ from the one before in one way: in a value, a type, a shape, in which tensors are one."""
    for answers in ranks.run(changing_tasks.save_changing, str(tmp_path / "run"), options)[:2]:
        assert len(answers) == len(changing_tasks.CHANGES)
        for number, (saved, restored) in enumerate(answers):
            assert restored == saved, number
