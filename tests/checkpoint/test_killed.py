"""Training is killed at random moments during saves: the newest complete step can always be restored."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import trainings
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.folder.step_folders import StepFolder
from faults import Server

KILLS = 500  # by night, in each mode
LONGEST = 0.03  # seconds: a few steps


@pytest.fixture
def one_thread() -> Iterator[None]:
    """One thread as in the children: the last bit of a sum depends on the number of threads."""
    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("kills", [KILLS // 10, pytest.param(KILLS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("incremental", "writer"),
    [(False, "thread"), (True, "thread"), (True, "process")],
    ids=["full", "incremental", "by a process"],
)
def test_newest_complete_step_is_restored_after_a_kill(
    plain_server: Server, tmp_path: Path, incremental: bool, writer: str, kills: int
) -> None:
    chance = random.Random(f"{incremental}")
    by_thread = writer == "thread"
    folder, ready = tmp_path / "run", tmp_path / "ready"
    reference = trainings.with_history(trainings.make())
    random_state = reference["random"].state_dict()
    torn = newer = late = 0
    plain_server.prepare_training()
    for turn in range(kills):
        ready.unlink(missing_ok=True)
        child = plain_server.start(
            "checkpoints.train_forever",
            folder=str(folder),
            ready=str(ready),
            incremental=incremental,
            writer=writer,
        )
        wanted = chance.randrange(1, 4)
        while _lines(ready) < wanted:
            time.sleep(0.0005)
        where = f"turn {turn}, {child.killed_after(chance.uniform(0, LONGEST))} after the start of save {wanted}"
        known = int(ready.read_text().split("\n")[-2])

        late += any(folder.glob("step-*/changes.1.pt"))
        torn += any(not (step / "manifest.json").exists() for step in folder.glob("step-*"))
        state = trainings.with_history(trainings.make(seed=1))
        with Checkpointer(folder, read_only=by_thread) as checkpointer:  # else it waits for the writer process
            steps = checkpointer.steps()
            for step in steps:
                checkpointer.verify(step)
            restored = checkpointer.restore(into=state)  # pytest makes a warning an error
        newest = restored.step if restored is not None else 0
        assert newest == (max(steps) if steps else 0), where
        assert newest >= known, where
        newer += newest > known
        _catch_up(reference, newest, random_state)
        assert restored is None or trainings.differ(state, reference) == "", where
    assert reference["step"] > kills // 2  # training made progress
    # The kills hit the intended moments: many during a save, some between a commit and the report of it.
    assert torn > 0 or not by_thread
    assert incremental or late == 0
    if kills == KILLS and by_thread:
        assert torn > kills // 10
        assert newer > 0
        assert (late > 0) == incremental  # some hit when a step's second file existed


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("kills", [KILLS // 50, pytest.param(KILLS, marks=pytest.mark.nightly)])
def test_step_of_a_killed_writer_process_is_whole_or_absent_and_its_handle_says_which(
    tmp_path: Path, kills: int
) -> None:
    """A kill between the step's commit and the message that tells it makes an error of a step that is there."""
    chance = random.Random(0)
    state = {f"layer {number}": torch.arange(1 << 18) for number in range(4)}
    lost = 0
    newest = -1
    with Checkpointer(tmp_path, writer="process", keep=2) as checkpointer:
        for step in range(kills):
            for layer in state.values():
                layer.fill_(step)
            with contextlib.suppress(fastio.CheckpointError):  # of the step before
                checkpointer.wait()
            handle = checkpointer.save(step, state)
            time.sleep(chance.uniform(0, LONGEST))
            # It is gone if it had been killed before, but took this step before the system ended it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(checkpointer._saver._writes._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
            error = handle.written.exception(timeout=60)
            assert error is None or "the writer process was ended by SIGKILL" in str(error)
            lost += error is not None
            steps = checkpointer.steps()
            assert steps[-1:] == [step] if error is None else steps[-1:] in ([newest] if newest >= 0 else [], [step])
            if steps:
                newest = steps[-1]
                restored = checkpointer.restore()
                assert restored is not None
                assert restored.step == newest
                assert all(torch.equal(layer, torch.full_like(layer, newest)) for layer in restored.state.values())
    assert lost > 0
    names = {name for name in os.listdir(tmp_path) if name != ".lock"}
    assert names == {f"step-{step:010d}" for step in steps}


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _catch_up(reference: dict[str, Any], step: int, random_state: dict[str, Any]) -> None:
    """Train the uninterrupted run up to a step, with its own state of the generators."""
    reference["random"].load_state_dict(random_state)
    while reference["step"] < step:
        trainings.train(reference)
    random_state.clear()
    random_state.update(reference["random"].state_dict())


def test_interrupted_removal_of_an_old_step_is_finished_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that is not kept any more is invisible, so only a later save or prune can remove its files."""
    state = {"weight": torch.zeros(1 << 10)}
    remove = StepFolder.remove
    with Checkpointer(tmp_path, keep=1, asynchronous=False) as checkpointer:
        for step in range(6):

            def interrupted(self: StepFolder, number: int, step: int = step) -> None:
                monkeypatch.setattr(StepFolder, "remove", remove)
                if step % 2:
                    signal.raise_signal(signal.SIGINT)
                remove(self, number)

            monkeypatch.setattr(StepFolder, "remove", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                checkpointer.save(step, state)
        monkeypatch.setattr(StepFolder, "remove", remove)
        checkpointer.prune()
        assert checkpointer.steps() == [5]
    assert len(list(tmp_path.glob("*/state.pt"))) == 1
