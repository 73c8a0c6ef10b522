"""Changed storages are written while the rest is still compared; changes found later are in the step too."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import parallel_copy, saver, snapshot
from parted import changed_once, check, files_of, make
from trainings import folder_of


@pytest.fixture(autouse=True)
def _small_states_begin_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saver, "_WORTH_AN_EARLY_START", 1)


class CallBetween:
    """Calls ``meanwhile`` between a snapshot's first comparison and the comparison of the rest."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
        def copy_all(copies: Sequence[parallel_copy.Copy], *rest: Any) -> dict[int, int | None]:
            nonlocal calls
            calls += 1
            if calls % 2 == 0:
                meanwhile()
            return parallel_copy.copy_all(copies, *rest)

        calls = 0
        monkeypatch.setattr(snapshot, "copy_all", copy_all)


def test_writing_begins_before_all_storages_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        state["part3"].add_(1)
        state["small"].add_(1)
        there = folder_of(tmp_path, 1) / "changes.pt"
        waited = threading.Event()

        def meanwhile() -> None:
            while not there.exists():
                waited.wait(0.001)
            assert checkpointer.steps() == [0]  # the new step is not visible yet
            waited.set()

        with monkeypatch.context() as patch:
            CallBetween(patch, meanwhile)
            checkpointer.save(1, state)
        assert waited.is_set()
        check(checkpointer, 1, state)
        assert files_of(tmp_path, 1) == ["changes.pt", "step-0000000000.1.state.pt"]


def test_changes_beyond_the_first_block_are_saved(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True, keep=2) as checkpointer:
        checkpointer.save(0, state)
        names = []
        for step in range(1, 15):
            state["part0"].add_(1)
            state[f"part{step % 5 + 1}"][-1].add_(1)
            state["count"] = step
            checkpointer.save(step, state)
            check(checkpointer, step, state)
            names.append(files_of(tmp_path, step))
            assert len(names[-1]) <= 10
        # Changes found first and changes found later have a file each, and links to both are kept apart.
        assert names[0] == ["changes.pt", "changes.1.pt", "step-0000000000.1.state.pt"]
        assert "step-0000000001.2.changes.1.pt" in names[1]
        for step in (13, 14):
            checkpointer.verify(step)


def test_many_changes_beyond_the_first_block_are_saved_without_links(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True) as checkpointer:
        checkpointer.save(0, state)
        state["part0"].add_(1)
        for number in range(1, 8):
            state[f"part{number}"][-1].add_(1)
        checkpointer.save(1, state)
        check(checkpointer, 1, state)
        assert files_of(tmp_path, 1) == ["changes.pt", "changes.1.pt"]
        state["part0"].add_(1)
        checkpointer.save(2, state)
        check(checkpointer, 2, state)
        assert files_of(tmp_path, 2) == ["changes.pt", "step-0000000001.2.changes.1.pt"]


def test_without_hard_links_all_changes_and_the_rest_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "this filesystem has no hard links")

    state = make()
    with Checkpointer(tmp_path, incremental=True, keep=1) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        monkeypatch.setattr(os, "link", refuse)
        for step in (1, 2):
            state["part0"].add_(1)
            checkpointer.save(step, state)
            check(checkpointer, step, state)
            assert files_of(tmp_path, step) == ["changes.pt", "changes.1.pt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_comparison_discards_the_write_that_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """The write that began is discarded: it is not known whether the rest changed."""

    def fail() -> None:
        raise error

    with changed_once(tmp_path) as (checkpointer, state):
        with monkeypatch.context() as patch:
            CallBetween(patch, fail)
            with pytest.raises(error):
                checkpointer.save(1, state)
        checkpointer.wait()  # save raised the error, which is not raised again
        assert checkpointer.steps() == [0]
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
        for step in (2, 3):
            state["part1"].add_(1)
            checkpointer.save(step, state)
            check(checkpointer, step, state)
        assert files_of(tmp_path, 2) == ["state.pt"]


def test_error_of_a_write_during_the_comparison_is_raised_by_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.checkpoint.saving import writing

    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise OSError(5, "the disk is gone")

    with changed_once(tmp_path) as (checkpointer, state):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_layout", fail)
            CallBetween(patch, lambda: failed.wait(30))
            checkpointer.save(1, state)
        assert failed.is_set()
        with pytest.raises(OSError, match="the disk is gone"):
            checkpointer.save(2, state)
        checkpointer.save(2, state)
        check(checkpointer, 2, state)
        assert checkpointer.steps() == [0, 2]
