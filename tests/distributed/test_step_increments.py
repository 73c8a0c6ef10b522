"""Incremental steps of several ranks: what did not change is linked, and stays when old steps are removed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import fastio
import step_increment_tasks as tasks
from ranks import Ranks


@pytest.mark.parametrize("options", [{}, {"asynchronous": False}, {"read_back": True}])
def test_only_changes_are_written(ranks: Ranks, tmp_path: Path, options: dict[str, Any]) -> None:
    answers = ranks.run(tasks.save, str(tmp_path / "run"), 2, [3, 3, 3, 3], {"keep": 2, **options})[:2]
    for files, _, kept in answers:
        assert kept == [3, 4]
        (first,) = files[0]
        for step in range(1, 5):
            (own,) = files[step] - files[0]
            assert first in files[step]  # the same file, though the first step was removed
            assert tasks.PART_BYTES / 2 < own[2] < tasks.PART_BYTES
            assert not {own} & files[step - 1]
    names = {path.name for path in (tmp_path / "run" / "step-0000000004").iterdir()}
    data = {name for files, _, _ in answers for name, _, _ in files[4]}
    assert names == {"manifest.json", ".metadata", *data}


@pytest.mark.parametrize(("count", "later"), [(2, 2), (2, 4), (4, 2), (3, 1)])
def test_any_number_of_ranks_and_torch_read_linked_steps(ranks: Ranks, tmp_path: Path, count: int, later: int) -> None:
    saved = ranks.run(tasks.save, str(tmp_path / "run"), count, [0, 1, 0], {"keep": 2})
    files, values, kept = saved[0]
    assert len(files[3]) > 1
    for step in kept:
        for mine, theirs in ranks.run(tasks.restore, str(tmp_path / "run"), later, step)[:later]:
            assert mine == theirs == values[step]
    with fastio.Checkpointer(tmp_path / "run", read_only=True) as checkpointer:
        restored = checkpointer.restore()
        assert restored is not None
        assert {name: restored.state[name].tolist() for name in values[3]} == values[3]


def test_space_is_bounded_when_changes_move_between_tensors(ranks: Ranks, tmp_path: Path) -> None:
    turns = [n % tasks.PARTS for n in range(20)]
    for files, _, _ in ranks.run(tasks.save, str(tmp_path / "run"), 2, turns, {"keep": 2})[:2]:
        counts = [len(one) for one in files]
        assert max(counts) <= 9
        assert 1 < counts.count(1) < 8  # now and then all is written again
        total = tasks.PARTS * tasks.PART_BYTES / 2
        assert max(sum(size for _, _, size in one) for one in files) < 3.5 * total


def test_another_number_of_ranks_saves_in_full(ranks: Ranks, tmp_path: Path) -> None:
    ranks.run(tasks.save, str(tmp_path / "run"), 2, [0], {"keep": None})
    for files, _, kept in ranks.run(tasks.save, str(tmp_path / "run"), 4, [1], {"keep": None}):
        assert kept == [0, 1]
        assert [len(one) for one in files] == [1, 2]


@pytest.mark.parametrize(
    ("how", "error", "files"),
    [
        ("capture", "RankError", [[1, 0, 1, 2], [1, 0, 1, 2]]),
        ("disk", "RankError", [[1, 0, 1, 2], [1, 0, 1, 2]]),
        ("links", "", [[1, 2, 2, 2], [1, 1, 2, 2]]),
    ],
)
def test_step_after_one_that_was_not_linked_is_complete(
    ranks: Ranks, tmp_path: Path, how: str, error: str, files: list[list[int]]
) -> None:
    answers = ranks.run(tasks.fail_once, str(tmp_path / "run"), 2, how)[:2]
    for rank, (errors, steps, found, is_whole) in enumerate(answers):
        assert errors == ["", error, "", ""]
        assert steps == ([0, 2, 3] if error else [0, 1, 2, 3])
        assert is_whole
        if how != "capture":
            assert found == files[rank]
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {".lock", *(f"step-{step:010d}" for step in answers[0][1])}
