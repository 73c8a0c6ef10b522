"""``when_busy="queue"``: steps are copied at once, and written one after the other."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import writing
from trainings import is_of, state_of

MIB = 1 << 20


def test_queued_step_is_copied_at_once_and_written_after_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, gates, began = writing.save_layout, [threading.Event(), threading.Event()], []

    def wait_and_save(layout: Any, path: str, *rest: Any) -> Any:
        began.append(os.path.basename(os.path.dirname(path)))
        assert gates[len(began) - 1].wait(20)
        return save(layout, path, *rest)

    monkeypatch.setattr(writing, "save_layout", wait_and_save)
    state = {"tensor": torch.zeros(5000)}
    with Checkpointer(tmp_path, when_busy="queue") as checkpointer:
        first = checkpointer.save(0, state)
        state["tensor"].add_(1)
        second = checkpointer.save(1, state)
        state["tensor"].add_(1)
        assert not first.written.done()
        gates[0].set()
        first.written.result(timeout=300)
        assert not second.written.done()
        assert checkpointer.steps() == [0]
        gates[1].set()
        checkpointer.wait()
        assert second.written.done()
        assert began == ["step-0000000000", "step-0000000001"]
        assert checkpointer.steps() == [0, 1]
        assert [checkpointer.restore(step).state["tensor"].unique().tolist() for step in (0, 1)] == [[0], [1]]
        assert checkpointer.latest() == 1


def test_queued_steps_survive_each_other_when_saves_come_fast(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, when_busy="queue", keep=None) as checkpointer:
        for step in range(12):
            assert checkpointer.save(step, state_of(step))
        checkpointer.wait()
        assert checkpointer.steps() == list(range(12))
        for step in range(12):
            assert is_of(checkpointer.restore(step).state, step)


@pytest.mark.parametrize(("budget", "most"), [(None, 2), ("3MiB", 3)])
def test_queue_takes_no_more_copies_than_allowed(
    tmp_path: Path, held: threading.Event, budget: str | None, most: int
) -> None:
    state = {"tensor": torch.zeros(MIB, dtype=torch.uint8)}
    with Checkpointer(tmp_path, when_busy="queue", memory_budget=budget, keep=None) as checkpointer:
        for step in range(most):
            checkpointer.save(step, state)
        timer = threading.Timer(0.1, held.set)
        timer.start()
        checkpointer.save(most, state)  # waits for the first step
        assert held.is_set()
        assert 0 in checkpointer.steps()
        timer.join()
        assert len(checkpointer._saver._snapshots._users) == most
        checkpointer.wait()
        assert checkpointer.steps() == list(range(most + 1))


def test_state_beyond_the_budget_waits_for_the_queue(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    states = [
        {"tensor": torch.randint(0, 256, (mib * MIB,), dtype=torch.uint8, generator=generator)} for mib in (1, 40, 2)
    ]
    with Checkpointer(tmp_path, when_busy="queue", memory_budget="33MiB", keep=None) as checkpointer:
        for step, state in enumerate(states):
            checkpointer.save(step, state)
        checkpointer.wait()
        for step, state in enumerate(states):
            assert torch.equal(checkpointer.restore(step).state["tensor"], state["tensor"])


def failing(monkeypatch: pytest.MonkeyPatch, count: int) -> threading.Event:
    """Have the steps below ``count`` fail. Steps wait for the event before they are written."""
    save, go = writing.save_layout, threading.Event()

    def fail(layout: Any, path: str, *rest: Any) -> Any:
        assert go.wait(20)
        step = int(os.path.basename(os.path.dirname(path)).partition("-")[2])
        if step < count:
            raise OSError(5, f"the disk is gone for step {step}")
        return save(layout, path, *rest)

    monkeypatch.setattr(writing, "save_layout", fail)
    return go


def test_error_of_one_step_does_not_stop_the_next_and_each_is_raised_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = failing(monkeypatch, 2)
    checkpointer = Checkpointer(tmp_path, when_busy="queue", memory_budget="1GiB")
    handles = [checkpointer.save(step, state_of(step)) for step in range(3)]
    go.set()
    for step in range(2):
        with pytest.raises(OSError, match=f"for step {step}"):
            checkpointer.wait()
    checkpointer.wait()
    assert [handle.written.exception() is None for handle in handles] == [False, False, True]
    assert checkpointer.steps() == [2]
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000002"]
    checkpointer.close()


def test_closing_waits_for_all_queued_steps_and_raises_the_first_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = failing(monkeypatch, 1)
    checkpointer = Checkpointer(tmp_path, when_busy="queue")
    checkpointer.save(0, state_of(0))
    second = checkpointer.save(1, state_of(1))
    go.set()
    with pytest.raises(OSError, match="the disk is gone"):
        checkpointer.close()
    assert second.written.done()
    with Checkpointer(tmp_path) as again:
        assert again.steps() == [1]


def test_incremental_steps_cannot_be_queued(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="when_busy='queue': incremental=True compares with one copy"):
        fastio.Checkpointer(tmp_path / "run", when_busy="queue", incremental=True)
    assert not (tmp_path / "run").exists()
