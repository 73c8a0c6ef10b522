"""What is known to have changed is written while the rest is looked at; what is found later is in the step too."""

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


class Looking:
    """Stops a Checkpointer after its first look at a snapshot, calls ``meanwhile`` there, then lets it go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
        def copy_all(copies: Sequence[parallel_copy.Copy], *rest: Any) -> set[int]:
            nonlocal calls
            calls += 1
            if calls % 2 == 0:
                meanwhile()
            return parallel_copy.copy_all(copies, *rest)

        calls = 0
        monkeypatch.setattr(snapshot, "copy_all", copy_all)


def test_writing_begins_before_all_has_been_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
            assert checkpointer.steps() == [0]  # but nobody sees it
            waited.set()

        with monkeypatch.context() as patch:
            Looking(patch, meanwhile)
            checkpointer.save(1, state)
        assert waited.is_set()
        check(checkpointer, 1, state)
        assert files_of(tmp_path, 1) == ["changes.pt", "step-0000000000.1.state.pt"]


def test_what_changed_only_where_nobody_looked_first(tmp_path: Path) -> None:
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
        # Each of both kinds is in a file of its own, and links to either do not mix them up.
        assert names[0] == ["changes.pt", "changes.1.pt", "step-0000000000.1.state.pt"]
        assert "step-0000000001.2.changes.1.pt" in names[1]
        for step in (13, 14):
            checkpointer.verify(step)


def test_most_changed_only_where_nobody_looked_first(tmp_path: Path) -> None:
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


def test_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_look_that_breaks_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]) -> None:
    """What was begun is given up: nobody knows whether the rest changed."""

    def fail() -> None:
        raise error

    with changed_once(tmp_path) as (checkpointer, state):
        with monkeypatch.context() as patch:
            Looking(patch, fail)
            with pytest.raises(error):
                checkpointer.save(1, state)
        checkpointer.wait()  # save said that it failed, and nobody says so twice
        assert checkpointer.steps() == [0]
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
        for step in (2, 3):
            state["part1"].add_(1)
            checkpointer.save(step, state)
            check(checkpointer, step, state)
        assert files_of(tmp_path, 2) == ["state.pt"]


def test_writing_that_fails_while_the_rest_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.checkpoint.saving import writing

    failed = threading.Event()

    def fail(*_: Any) -> None:
        failed.set()
        raise OSError(5, "the disk is gone")

    with changed_once(tmp_path) as (checkpointer, state):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_layout", fail)
            Looking(patch, lambda: failed.wait(30))
            checkpointer.save(1, state)
        assert failed.is_set()
        with pytest.raises(OSError, match="the disk is gone"):
            checkpointer.save(2, state)
        checkpointer.save(2, state)
        check(checkpointer, 2, state)
        assert checkpointer.steps() == [0, 2]
