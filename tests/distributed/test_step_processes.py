"""``writer="process"`` with several ranks: copied steps are written though trainings die; else nothing is left."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import fastio
import step_process_tasks as tasks
from ranks import Ranks


@pytest.mark.parametrize(("options", "files"), [({"when_busy": "queue"}, 1), ({"incremental": True}, 2)])
def test_processes_write_steps_and_keep_the_last(
    ranks: Ranks, tmp_path: Path, options: dict[str, Any], files: int
) -> None:
    answers = ranks.run(tasks.save_steps, str(tmp_path / "run"), 2, options)[:2]
    assert answers == [([3, 4], 2, files, True, True, True)] * 2
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "step-0000000003", "step-0000000004"}
    names = sorted(path.name for path in (tmp_path / "run" / "step-0000000004").iterdir())
    assert [name[:4] for name in names] == [".met", *["__0_"] * files, *["__1_"] * files, "mani"]


def test_part_beyond_the_budget_is_written_by_a_thread(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks.run(tasks.over_budget, str(tmp_path / "run"), 2)[:2] == [([0, 1, 2, 3], [True] * 4)] * 2


@pytest.mark.parametrize(
    ("how", "kind", "victim"),
    [
        ("disk", "TransferError", 0),
        ("disk", "TransferError", 1),
        ("queued", "CheckpointError", 0),
        ("queued", "CheckpointError", 1),
        ("elsewhere", "CheckpointError", 1),
    ],
)
def test_error_of_one_process_is_one_of_all_ranks(
    ranks: Ranks, tmp_path: Path, how: str, kind: str, victim: int
) -> None:
    answers = ranks.run(tasks.fail, str(tmp_path / "run"), 2, how, victim)[:2]
    assert answers[0] == answers[1]
    errors, left, steps, is_whole = answers[0]
    assert len(errors) == (2 if how == "queued" else 1)
    for name, text, by_rank in errors:
        assert name == "RankError"
        assert by_rank == {victim: kind}
        assert how == "disk" or "the writer process was ended by SIGKILL; save again" in text
    assert left == [".lock", "step-0000000001"]
    assert steps == [1, 4]
    assert is_whole


def test_process_that_is_silent_fails_the_step(ranks: Ranks, tmp_path: Path) -> None:
    answers = ranks.run(tasks.silent, str(tmp_path / "run"), 2)[:2]
    assert answers[0] == answers[1]
    (name, text, by_rank), steps = answers[0]
    assert (name, by_rank) == ("RankError", {1: "CheckpointError"})
    assert "the writer process of rank 1 on elsewhere did not finish its part within 1 s" in text
    assert steps == [1, 3]


def test_process_that_ended_before_is_started_again(ranks: Ranks, tmp_path: Path) -> None:
    for errors, left, steps, is_whole in ranks.run(tasks.fail, str(tmp_path / "run"), 2, "idle", 1)[:2]:
        assert errors == [("", "", {})]
        assert left == [".lock", "step-0000000001", "step-0000000002"]
        assert steps == [1, 2, 4]
        assert is_whole


def test_parts_that_do_not_fit_together_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    for errors, left, steps, is_whole in ranks.run(tasks.fail, str(tmp_path / "run"), 2, "shape", 1)[:2]:
        assert errors == []
        assert left == [".lock", "step-0000000001"]
        assert (steps, is_whole) == ([1, 4], True)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("victims", "steps"), [([0], 1), ([1], 1), ([0, 1], 2)])
def test_steps_are_whole_though_trainings_were_killed(tmp_path: Path, victims: list[int], steps: int) -> None:
    with Ranks(2, tmp_path, timeout=60) as pool:
        answers = pool.answers(tasks.die, str(tmp_path / "run"), victims, steps)
    for rank in {0, 1} - set(victims):
        assert answers[rank] == (True, ["RankLostError"])
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:  # waits for the first rank's process
        assert checkpointer.steps() == list(range(steps))
        for step in range(steps):
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert restored is not None
            assert torch.equal(restored.state["all"], torch.full((4096,), step))
            stored = {f"rank {rank}": torch.zeros(8 << 17, dtype=torch.long) for rank in range(2)}
            dcp.load(stored, checkpoint_id=tmp_path / "run" / f"step-{step:010d}", no_dist=True)
            assert all(torch.equal(stored[f"rank {rank}"], torch.full((8 << 17,), step + rank)) for rank in range(2))
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        ".lock", *(f"step-{step:010d}" for step in range(steps)),
    }  # fmt: skip


@pytest.mark.parametrize("victim", [0, 1])
def test_step_of_which_a_process_was_killed_after_its_training_is_not_there(tmp_path: Path, victim: int) -> None:
    with Ranks(2, tmp_path, timeout=60) as pool:
        pool.answers(tasks.die_without_process, str(tmp_path / "run"), victim)
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.steps() == [0]
        checkpointer.verify(0)
        checkpointer.save(2, {"a": torch.ones(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [0, 2]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "step-0000000000", "step-0000000002"}
