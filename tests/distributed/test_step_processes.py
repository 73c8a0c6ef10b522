"""``writer="process"`` with several ranks: copied steps are written though trainings die; else nothing is left."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp

import fastio
import step_process_tasks as tasks
from fastio.checkpoint.folder.lock import is_running
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


ERRORS = {
    "disk": ("TransferError", "File too large"),
    "silent": ("CheckpointError", "the writer process of rank 1 on elsewhere did not finish its part within 1 s"),
    "elsewhere": ("CheckpointError", "the writer process was ended by SIGKILL; save again"),
    "queued": ("CheckpointError", "the writer process was ended by SIGKILL; save again"),
}


@pytest.mark.parametrize(
    ("victim", "hows"), [(0, ["disk", "queued"]), (1, ["disk", "shape", "silent", "queued", "elsewhere", "ended"])]
)
def test_error_of_one_process_is_one_of_all_ranks(ranks: Ranks, tmp_path: Path, victim: int, hows: list[str]) -> None:
    answers = ranks.run(tasks.fail, str(tmp_path / "run"), 2, victim, hows)[:2]
    assert answers[0] == answers[1]
    there = {".lock", "step-0000000000"}
    for number, (how, (errors, left, is_whole)) in enumerate(zip(hows, answers[0], strict=True), 1):
        if how == "ended":  # before the save, which starts another one
            there |= {f"step-{10 * number:010d}"}
            assert errors == [("", "", {})]
        elif how == "shape":
            assert [name for name, _, _ in errors] == ["RankError"]
        else:
            kind, words = ERRORS[how]
            assert len(errors) == (2 if how == "queued" else 1)
            for name, text, by_rank in errors:
                assert (name, by_rank) == ("RankError", {victim: kind}), how
                assert words in text
        assert left == there
        assert is_whole
        there |= {f"step-{number:010d}"}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize(("victims", "steps"), [pytest.param([0], 1, marks=pytest.mark.nightly), ([1], 1), ([0, 1], 2)])
def test_steps_are_whole_though_trainings_were_killed(tmp_path: Path, victims: list[int], steps: int) -> None:
    with Ranks(2, tmp_path, timeout=60) as pool:
        answers = pool.answers(tasks.die, str(tmp_path / "run"), victims, steps, str(tmp_path / "pid"))
    if len(victims) == 2:
        for rank in victims:
            os.kill(int((tmp_path / f"pid.{rank}").read_text().split()[0]), signal.SIGCONT)
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


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.nightly), 1])
def test_step_of_which_a_process_was_killed_after_its_training_is_not_there(tmp_path: Path, victim: int) -> None:
    with Ranks(2, tmp_path, timeout=60) as pool:
        pool.answers(tasks.die_without_process, str(tmp_path / "run"), victim, str(tmp_path / "pid"))
    while is_running(int((tmp_path / f"pid.{1 - victim}").read_text())):
        time.sleep(0.005)
    with fastio.Checkpointer(tmp_path / "run") as checkpointer:
        assert checkpointer.steps() == [0]
        checkpointer.verify(0)
        checkpointer.save(2, {"a": torch.ones(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [0, 2]
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "step-0000000000", "step-0000000002"}
