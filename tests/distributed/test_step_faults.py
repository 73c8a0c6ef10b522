"""A Checkpointer of several ranks: what one rank suffers is the same for all, and nothing is half done."""

from __future__ import annotations

import os
import random
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import fastio
import step_fault_tasks as tasks
from ranks import Ranks

KILLS = 500  # by night


@pytest.mark.parametrize(
    ("how", "kind", "rank"),
    [
        ("capture", "UnpicklableError", 1),
        ("disk", "TransferError", 1),
        ("shape", "CheckpointError", 0),
        ("kind", "CheckpointError", 0),
    ],
)
def test_error_of_one_rank_is_one_of_all(ranks: Ranks, tmp_path: Path, how: str, kind: str, rank: int) -> None:
    answers = ranks.run(tasks.fail, str(tmp_path / "run"), 2, how)
    assert answers[0] == answers[1]
    (name, text, errors), is_clean, steps = answers[0]
    assert name == "RankError"
    assert f"rank {rank} failed" in text
    assert errors == {rank: kind}
    assert is_clean
    assert steps == [1, 3]


def test_each_step_is_planned_as_its_state_is(ranks: Ranks, tmp_path: Path) -> None:
    """Plans are kept from step to step, but not for a state that changed, nor beyond a step that failed."""
    for saved, found in ranks.run(tasks.change, str(tmp_path / "run"), 2)[:2]:
        assert saved == [""] * 7 + ["RankError"] + [""] * 3
        assert found == [(step, True) for step in range(11) if step != 7]


def test_fastios_own_names_are_refused(ranks: Ranks, tmp_path: Path) -> None:
    (name, text, _), is_clean, _ = ranks.run(tasks.fail, str(tmp_path / "run"), 2, "reserved")[0]
    assert name == "RankError"
    assert "names that begin with __fastio__. are fastio's own" in text
    assert is_clean


def test_rank_outside_of_the_group_is_told(ranks: Ranks) -> None:
    kind, text, _ = ranks.run(tasks.outside, 2)[3]
    assert kind == "ValueError"
    assert "rank 3 is none of its ranks" in text


def test_straggler_holds_no_memory_of_others(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.straggle, str(tmp_path / "run"), 2, str(tmp_path / "gate"))
    assert first == (True, 1, [1, 2], True)
    assert second == (True, 2, [1, 2], True)


@pytest.mark.parametrize("when_busy", ["skip", "queue", "wait"])
def test_all_ranks_save_the_same_steps(ranks: Ranks, tmp_path: Path, when_busy: str) -> None:
    if when_busy == "wait":  # it would wait for the gate
        (tmp_path / "gate").touch()
    first, second, *_ = ranks.run(tasks.skip, str(tmp_path / "run"), 2, str(tmp_path / "gate"), when_busy)
    assert first == second
    saved, steps = first
    assert saved[:2] == [True, when_busy != "skip"]
    assert saved[-1]
    assert steps[-1] == 20
    assert all(saved) is (when_busy != "skip")


def test_all_ranks_stop_at_the_same_step(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.stop, str(tmp_path / "run"), 2)
    assert first == second == (5, True, False, [5])


def test_second_writer_is_refused_on_all_ranks(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.two_writers, str(tmp_path / "run"), 2)
    assert first == second
    assert first[0] == "RankError"
    assert first[2] == {0: "FolderInUseError"}


def test_ranks_that_see_other_folders_are_told(ranks: Ranks, tmp_path: Path) -> None:
    folders = [str(tmp_path / "a"), str(tmp_path / "b")]
    (tmp_path / "b").mkdir()
    first, second, *_ = ranks.run(tasks.other_folders, folders, 2)
    assert first == second
    assert first[2] == {1: "CheckpointError"}
    assert "all ranks must save into one folder" in first[1]
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["b"]  # rank 0 made the other one


def test_ranks_that_make_other_calls_are_told(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.other_calls, str(tmp_path / "run"), 2)
    assert first == second
    errors, steps, (kind, text, _) = first
    assert kind == "RankError"
    assert "rank 0 called Checkpointer, and rank 1 Checkpointer(read_only=True)" in text
    called = ["save(0)", "verify(1)", "restore()", "latest()", "save(0)", "prune()"]
    others = ["save(1)", *called[2:]]
    for (kind, text, _), mine, other in zip(errors, called, others, strict=False):
        assert kind == "RankError"
        assert f"rank 0 called {mine}, and rank 1 {other}" in text
    assert steps == [5]


def test_step_is_replaced_and_old_ones_are_removed(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.replaced, str(tmp_path / "run"), 2)
    assert first == second
    found, names = first
    assert found == (4, [4, 5], True, [])
    assert {name.split("/")[0] for name in names} == {"step-0000000004", "step-0000000005"}
    kept = [name.split("/")[1] for name in names if name.startswith("step-0000000004/")]
    assert {"notes 0", "notes 1", ".metadata", "manifest.json"} <= set(kept)
    assert len(kept) == 6


@pytest.mark.parametrize("name", ["__1_*.distcp", ".metadata", "manifest.json"])
@pytest.mark.parametrize("how", ["changed", "cut", "removed"])
def test_all_ranks_restore_the_step_before_a_damaged_one(ranks: Ranks, tmp_path: Path, name: str, how: str) -> None:
    ranks.run(tasks.save_steps, str(tmp_path / "run"), 2, 2)
    (path,) = (tmp_path / "run" / "step-0000000002").glob(name)
    data = bytearray(path.read_bytes())
    if how == "removed":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes(data if how == "changed" else data[:-9])
    first, second, *_ = ranks.run(tasks.damaged, str(tmp_path / "run"), 2)
    is_gone = (name, how) == ("manifest.json", "removed")  # then it is no step
    for warned, step, is_whole, error, checked in (first, second):
        assert (step, is_whole) == (1, True)
        assert len(warned) == (0 if is_gone else 1)
        kinds = {kind for one in (error, checked) for kind in (one[2].values() or [one[0]])}
        assert kinds == ({"CheckpointError"} if is_gone else {"CorruptFileError"})
    assert first == second


def test_byte_that_changes_in_the_copy_is_found(ranks: Ranks, tmp_path: Path) -> None:
    first, second, *_ = ranks.run(tasks.changed_copy, str(tmp_path / "run"), 2)
    assert first == second
    is_live_same, *errors = first
    assert is_live_same
    for kind, _, by_rank in errors:
        assert kind == "RankError"
        assert set(by_rank.values()) == {"CorruptFileError"}


def test_interrupt_ends_the_wait_for_another_rank(tmp_path: Path) -> None:
    with Ranks(2, tmp_path) as pool:
        first, second = pool.run(tasks.interrupted, str(tmp_path / "run"), 2, str(tmp_path / "gate"))
    assert first == second == ("RankLostError", "")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {".lock", "step-0000000001"}


def test_rank_that_ended_is_named_and_an_interrupt_ends_the_wait_for_it(tmp_path: Path) -> None:
    with Ranks(3, tmp_path) as pool:
        for pipe in pool._pipes:
            pipe.send((tasks.restored_without_rank_1, (str(tmp_path / "run"),)))
        first, third = pool._answer(0), pool._answer(2)
    assert first == (True, ("KeyboardInterrupt", "a call of rank 0 was interrupted (KeyboardInterrupt)"))
    assert third == (True, ("RankLostError", "rank 1 ended, or does not answer"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [6, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_newest_step_is_whole_after_a_rank_was_killed(tmp_path: Path, kills: int) -> None:
    """The ranks of the next job restore it, and save the next one."""
    chance = random.Random(0)
    run, ready = tmp_path / "run", tmp_path / "ready"
    torn = newest = 0
    for turn in range(kills):
        (tmp_path / f"{turn}").mkdir()
        victim = turn % 3
        with Ranks(3, tmp_path / f"{turn}", timeout=60) as pool:
            known = _steps_of(ready)
            for pipe in pool._pipes:
                pipe.send((tasks.save_until_killed, (str(run), str(ready))))
            while _steps_of(ready) < known + 2:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.02))
            os.kill(pool.processes[victim].pid or 0, signal.SIGKILL)
            known = _steps_of(ready)
            for rank in {0, 1, 2} - {victim}:
                is_good, (kind, text) = pool._answer(rank)
                assert (is_good, kind) == (True, "RankLostError"), turn
                # Another rank is named too if it had the last answer of the killed one, and is in the next call.
                assert re.match(rf"(rank \d or )*rank {victim}( or rank \d)* ended, or does not answer", text), text
        torn += any(path.name.endswith("fastio-new") for path in run.iterdir())
        with fastio.Checkpointer(run, read_only=True) as checkpointer:
            steps = checkpointer.steps()
            for step in steps:
                checkpointer.verify(step)
            restored = checkpointer.restore()
            assert restored is not None
            newest = restored.step
        assert newest == max(steps), turn
        assert newest >= known, turn
        assert len(steps) <= 4
    assert newest > kills
    assert torn > 0 or kills < KILLS


def _steps_of(ready: Path) -> int:
    """The newest step that all ranks know of."""
    paths = [Path(f"{ready}.{rank}") for rank in range(3)]
    lines: list[Any] = [path.read_text().split("\n")[:-1] if path.exists() else [] for path in paths]
    return min(int(one[-1]) if one else 0 for one in lines)
