"""``on_signal``: one more save within the given time, nothing half done, handlers as they were before."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import warm_python
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import writing
from fastio.errors import CheckpointError
from trainings import is_of, state_of

USR1 = signal.SIGUSR1
TRAINING = """
import signal, sys
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import writing
from trainings import state_of

folder, pause = sys.argv[1], float(sys.argv[2])
save = writing.save_layout

def slow(layout, path, policy, progress, *others):
    import time
    for _ in range(int(pause / 0.01)):
        time.sleep(0.01)
        progress(0, 1)  # as a large file reports it
    return save(layout, path, policy, progress, *others)

with Checkpointer(folder, when_busy="skip") as checkpointer:
    checkpointer.on_signal(signal.SIGTERM, within=60 if pause < 2 else 0.3)
    for step in range(1_000_000):
        if step == 1:
            checkpointer.wait()
            writing.save_layout = slow
            print("ready", flush=True)
        if step % 7 == 0 or checkpointer.should_stop:
            checkpointer.save(step, state_of(step))
        if checkpointer.should_stop:
            break
    print(step, flush=True)
"""


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(USR1)
    yield
    assert signal.getsignal(USR1) is before


def test_training_that_gets_sigterm_saves_its_last_step_and_ends(tmp_path: Path) -> None:
    child = _train(tmp_path, 0.1)
    child.send_signal(signal.SIGTERM)
    child.send_signal(signal.SIGTERM)
    said, complaint = child.communicate(timeout=60)
    assert child.returncode == 0, complaint
    last = int(said.split()[-1])
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest() == last
        assert is_of(checkpointer.restore(last).state, last)


def test_save_that_takes_too_long_after_sigterm_is_stopped_and_leaves_nothing(tmp_path: Path) -> None:
    child = _train(tmp_path, 60)
    child.send_signal(signal.SIGTERM)
    _, complaint = child.communicate(timeout=30)
    assert child.returncode == 1
    assert "was not written within 0.3 s of SIGTERM" in complaint
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
    with Checkpointer(tmp_path) as checkpointer:
        assert is_of(checkpointer.restore().state, 0)


def test_first_save_after_the_signal_is_never_skipped_and_the_last_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, go = writing.save_layout, threading.Event()

    def wait_and_save(*arguments: Any) -> Any:
        assert go.wait(20)
        return save(*arguments)

    monkeypatch.setattr(writing, "save_layout", wait_and_save)
    with Checkpointer(tmp_path, when_busy="skip") as checkpointer:
        checkpointer.on_signal(USR1, within=20)
        assert not checkpointer.should_stop
        checkpointer.save(0, state_of(0))
        assert not checkpointer.save(1, state_of(1))
        signal.raise_signal(USR1)
        assert checkpointer.should_stop
        threading.Timer(0.1, go.set).start()
        assert checkpointer.save(2, state_of(2))
        again = checkpointer.save(3, state_of(3))
        assert not again
        with pytest.raises(CheckpointError, match="step 2 is the last one, it was saved after SIGUSR1"):
            again.written.result()
        checkpointer.wait()
        assert checkpointer.steps() == [0, 2]


def test_failed_save_after_the_signal_is_not_the_last(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.on_signal(USR1)
        signal.raise_signal(USR1)
        with pytest.raises(TypeError, match="DataLoader"):
            checkpointer.save(0, {"loader": torch.utils.data.DataLoader([1])})
        assert checkpointer.save(1, state_of(1))


def test_step_that_could_not_be_written_after_the_signal_may_be_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "the disk is full")

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.on_signal(USR1)
        signal.raise_signal(USR1)
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_layout", fail)
            assert checkpointer.save(1, state_of(1)).written.exception(timeout=60) is not None
        assert checkpointer.save(1, state_of(1))
        assert not checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [1]


@pytest.mark.parametrize("settings", [{}, {"asynchronous": False}, {"when_busy": "queue"}])
def test_no_save_begins_after_the_time_is_over(tmp_path: Path, settings: dict[str, Any]) -> None:
    with Checkpointer(tmp_path, **settings) as checkpointer:
        checkpointer.on_signal(USR1, within=0.001)
        signal.raise_signal(USR1)
        time.sleep(0.002)
        with pytest.raises(CheckpointError, match=r"step 0 was not written within 0.001 s of SIGUSR1: nothing of it"):
            checkpointer.save(0, state_of(0))
        assert os.listdir(tmp_path) == [".lock"]


def test_handler_before_is_called_and_restored(tmp_path: Path) -> None:
    heard: list[int] = []

    def hear(number: int, _: Any) -> None:
        heard.append(number)

    before = signal.signal(USR1, hear)
    try:
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.on_signal(USR1)
            checkpointer.on_signal(USR1, within=5)
            for _ in range(2):
                signal.raise_signal(USR1)
            assert heard == [USR1, USR1]
            assert checkpointer.should_stop
        assert signal.getsignal(USR1) is hear
    finally:
        signal.signal(USR1, before)


def test_handler_of_another_stays_at_the_end_and_finds_what_was_there_before(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(USR1, lambda number, _: heard.append(number))
    try:
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.on_signal(USR1)
            ours: Any = signal.getsignal(USR1)

            def other(number: int, frame: Any) -> None:
                ours(number, frame)

            signal.signal(USR1, other)
        assert signal.getsignal(USR1) is other
        signal.raise_signal(USR1)
        assert heard == [USR1]
    finally:
        signal.signal(USR1, before)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_checkpointer_that_is_gone_does_not_end_the_process_for_another(tmp_path: Path, is_dropped: bool) -> None:
    pid = os.fork()
    if pid == 0:
        status = 5
        try:
            first, second = Checkpointer(tmp_path / "first"), Checkpointer(tmp_path / "second")
            first.on_signal(USR1)
            if is_dropped:
                del first
            second.on_signal(USR1)
            if not is_dropped:
                first.close()
            os.kill(os.getpid(), USR1)
            status = 0 if second.should_stop else 3
            second.close()
            if signal.getsignal(USR1) is not signal.SIG_DFL:
                status = 4
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_first_ctrl_c_is_noted_and_the_second_interrupts(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.on_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        assert checkpointer.should_stop
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("is_dropped", [False, True])
def test_forked_child_and_dropped_checkpointer_end_by_the_signal(tmp_path: Path, is_dropped: bool) -> None:
    pid = os.fork()
    if pid == 0:
        checkpointer = Checkpointer(tmp_path)
        checkpointer.on_signal(USR1)
        if is_dropped:
            del checkpointer
            os.kill(os.getpid(), USR1)
            os._exit(3)
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), USR1)
            os._exit(3)
        os._exit(0 if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -USR1 else 4)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == (-USR1 if is_dropped else 0)


def test_other_threads_and_other_arguments_are_refused(tmp_path: Path) -> None:
    found: list[BaseException] = []

    def listen() -> None:
        try:
            checkpointer.on_signal(USR1)
        except CheckpointError as error:
            found.append(error)

    with Checkpointer(tmp_path) as checkpointer:
        thread = threading.Thread(target=listen)
        thread.start()
        thread.join()
        assert "on_signal must be called in the main thread" in str(found[0])
        wrong: Any
        for wrong in (signal.SIGKILL, signal.SIGSTOP, 0, 1000, 15.0, "SIGTERM", [USR1], None, True):
            with pytest.raises(ValueError, match=r"signal=.*: expected one that can be handled, such as"):
                checkpointer.on_signal(wrong)
        for wrong in (0, -1, float("inf"), float("nan"), "30", None, True):
            with pytest.raises(ValueError, match=r"within=.*: expected seconds, more than 0"):
                checkpointer.on_signal(USR1, within=wrong)
    with Checkpointer(tmp_path, read_only=True) as reader, pytest.raises(CheckpointError, match="read_only=True"):
        reader.on_signal(USR1)


def _train(folder: Path, pause: float) -> warm_python.WarmPopen:
    """A training that ran its first step; each further save takes ``pause`` seconds."""
    import subprocess

    pipe = subprocess.PIPE
    command = [sys.executable, "-c", TRAINING, str(folder), str(pause)]
    child = warm_python.WarmPopen(command, stdout=pipe, stderr=pipe, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child
