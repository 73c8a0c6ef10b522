"""Saves in the background: visibility, errors, memory, logs and progress."""

from __future__ import annotations

import errno
import gc
import logging
import os
import re
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from fastio.checkpoint import Checkpointer
from fastio.checkpoint.background_write import BackgroundWrite
from fastio.checkpoint.folder.step_folders import StepFolder
from fastio.checkpoint.write_queue import WriteQueue
from fastio.errors import FolderInUseError
from trainings import folder_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_step_is_invisible_until_it_is_written(folder: Path, held: threading.Event) -> None:
    with Checkpointer(folder) as checkpointer, Checkpointer(folder, read_only=True) as reader:
        assert checkpointer.save(0, {"tensor": torch.ones(3)})
        assert checkpointer.steps() == reader.steps() == []
        assert reader.restore() is None
        held.set()
        checkpointer.wait()
        assert checkpointer.steps() == reader.steps() == [0]
        restored = reader.restore()
        assert restored is not None
        assert restored.state["tensor"].tolist() == [1, 1, 1]


def test_when_busy_skip_skips_steps_while_one_is_written(folder: Path, held: threading.Event) -> None:
    with Checkpointer(folder, when_busy="skip") as checkpointer:
        assert checkpointer.save(0, {"tensor": torch.tensor(0)})
        assert not checkpointer.save(1, {"tensor": torch.tensor(1)})
        assert not checkpointer.save(2, {"tensor": torch.tensor(2)})
        held.set()
        checkpointer.wait()
        assert checkpointer.save(3, {"tensor": torch.tensor(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [0, 3]


def test_save_waits_for_the_step_before(folder: Path, held: threading.Event) -> None:
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(0, {"tensor": torch.tensor(0)})
        timer = threading.Timer(0.2, held.set)
        timer.start()
        checkpointer.save(1, {"tensor": torch.tensor(1)})
        assert held.is_set()
        assert 0 in checkpointer.steps()
        timer.join()


def test_deleted_checkpointer_finishes_its_write(folder: Path, held: threading.Event) -> None:
    checkpointer = Checkpointer(folder)
    checkpointer.save(0, {"tensor": torch.tensor(5)})
    del checkpointer
    gc.collect()
    with pytest.raises(FolderInUseError):
        Checkpointer(folder)
    held.set()
    for thread in threading.enumerate():
        if thread.name == "fastio-checkpoint":
            thread.join()
    gc.collect()
    with Checkpointer(folder) as checkpointer:
        assert checkpointer.steps() == [0]


def test_error_of_the_thread_is_raised_by_the_next_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.checkpoint.saving import writing

    def fail(*_: Any) -> None:
        raise OSError(5, "the disk is gone")

    checkpointer = Checkpointer(folder)
    checkpointer.save(0, {"tensor": torch.tensor(0)})
    checkpointer.wait()
    for call in (lambda: checkpointer.save(2, {}), checkpointer.wait, checkpointer.restore, checkpointer.close):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_layout", fail)
            checkpointer.save(1, {"tensor": torch.tensor(1)})
            with pytest.raises(OSError, match="the disk is gone"):
                call()
        assert os.listdir(folder / "step-0000000000") != []
        assert sorted(os.listdir(folder)) == [".lock", "step-0000000000"]
    with Checkpointer(folder) as again:
        assert again.steps() == [0]


def test_program_that_exits_finishes_its_writes_and_prints_their_errors(folder: Path, tmp_path: Path) -> None:
    """One write succeeds and one fails, both after the program's last line; in an interpreter that really exits."""
    failing = tmp_path / "failing"
    code = f"""
import time
import torch
from fastio.checkpoint.saving import writing
from fastio.checkpoint import Checkpointer
save = writing.save_layout
def slow(*arguments):
    time.sleep(0.5)
    if any({str(failing)!r} in str(argument) for argument in arguments):
        raise OSError(5, "the disk is gone")
    return save(*arguments)
writing.save_layout = slow
checkpointers = [Checkpointer({str(failing)!r}), Checkpointer({str(folder)!r})]
for checkpointer in checkpointers:
    checkpointer.save(7, {{"tensor": torch.arange(5)}})
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    for written, steps in ((failing, []), (folder, [7])):
        with Checkpointer(written) as checkpointer:
            assert checkpointer.steps() == steps
    assert "the disk is gone" in ended.stderr, ended.stderr
    assert ended.stderr.count("could not be saved") == 1, ended.stderr


def test_snapshot_memory_is_allocated_once(folder: Path) -> None:
    state = {"large": torch.zeros(6 << 20), "other": torch.zeros(1000)}
    with Checkpointer(folder) as checkpointer:
        addresses = set()
        for step in range(3):
            checkpointer.save(step, state)
            checkpointer.wait()
            memory = checkpointer._saver._snapshots.free()._memory
            assert memory is not None
            assert memory.nbytes < 26 << 20
            addresses.add(memory.address)
        assert len(addresses) == 1


def test_memory_budget_bounds_the_memory(folder: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    state = {
        f"{number}": torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
        for number, nbytes in enumerate([5, 40 << 20, 4095, 4097, 33 << 20, 1, 70 << 20, 100_003])
    }
    with Checkpointer(folder, memory_budget=33 << 20) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        memory = checkpointer._saver._snapshots.free()._memory
        assert memory is not None
        assert memory.nbytes <= 33 << 20
        checkpointer.verify(0)
        restored = checkpointer.restore()
        path = folder_of(folder, 0) / "state.pt"
        assert zipfile.ZipFile(path).testzip() is None
        plain = torch.load(path)
        assert restored is not None
        for name, tensor in state.items():
            assert torch.equal(restored.state[name], tensor)
            assert torch.equal(plain[name], tensor)


def test_chunked_save_raises_while_the_step_before_cannot_be_removed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.checkpoint.folder import step_folders as steps

    state = {"large": torch.ones(33 << 20, dtype=torch.uint8)}
    remove_all, go = steps.remove_all, threading.Event()

    def fail(path: str, names: Any) -> None:
        assert go.wait(300)
        raise OSError(errno.ENOTEMPTY, "another program's file is in the way", path)

    with Checkpointer(folder, keep=1, memory_budget="32MiB") as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(steps, "remove_all", fail)
            checkpointer.save(1, state)
            checkpointer.wait()
            threading.Timer(0.1, go.set).start()
            with pytest.raises(OSError, match="in the way"):
                checkpointer.save(2, state)
        assert steps.remove_all is remove_all
        assert checkpointer.steps() == [1]
        checkpointer.save(3, state)
        checkpointer.wait()
        assert checkpointer.steps() == [3]


def test_interrupted_save_leaves_the_removal_of_the_write_before_alone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, start = StepFolder.remove, WriteQueue.start
    go, another, at_once = threading.Event(), threading.Event(), threading.Lock()

    def wait_and_remove(steps: StepFolder, step: int) -> None:
        if not at_once.acquire(blocking=False):
            another.set()
            at_once.acquire()
        try:
            assert go.wait(300)
            remove(steps, step)
        finally:
            at_once.release()

    def start_and_interrupt(queue: WriteQueue, write: BackgroundWrite) -> None:
        start(queue, write)
        raise KeyboardInterrupt

    with Checkpointer(folder, keep=1) as checkpointer:
        checkpointer.save(0, {"step": 0})
        checkpointer.wait()
        monkeypatch.setattr(StepFolder, "remove", wait_and_remove)
        checkpointer.save(1, {"step": 1})
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(WriteQueue, "start", start_and_interrupt)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save(2, {"step": 2})
        assert not another.wait(0.5)
        go.set()
        checkpointer.save(3, {"step": 3})
        checkpointer.wait()
    assert sorted(os.listdir(folder)) == [".lock", "step-0000000003"]


def test_chunked_save_that_cannot_write_raises_at_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.checkpoint.saving import writing

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    state = {"large": torch.ones(33 << 20, dtype=torch.uint8)}
    with Checkpointer(folder, memory_budget="32MiB") as checkpointer:
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_in_chunks", fail)
            with pytest.raises(OSError, match="the disk is gone"):
                checkpointer.save(0, state)
        checkpointer.save(1, state)
        checkpointer.wait()
        assert checkpointer.steps() == [1]


def test_saves_and_restores_are_logged_and_report_progress(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastio.engine import delayed_progress

    monkeypatch.setattr(delayed_progress, "_SECONDS", 0.0)
    reports: list[tuple[int, int]] = []
    with (
        caplog.at_level(logging.INFO, "fastio.checkpoint"),
        Checkpointer(folder, progress=lambda done, total: reports.append((done, total))) as checkpointer,
    ):
        checkpointer.save(4, {"tensor": torch.zeros(1 << 20)})
        checkpointer.wait()
        saved = len(reports)
        assert reports[-1][0] == reports[-1][1] >= 4 << 20
        checkpointer.restore()
        assert len(reports) > saved
        assert reports[-1] == (4 << 20, 4 << 20)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    speed = r"in [\d.]+ s, \d+ MB/s by \w+ \(\w+\)"
    assert re.fullmatch(rf"step 4 saved: 4 MiB {speed}, training paused .*", lines[0])
    assert re.fullmatch(rf"step 4 restored: 4 MiB {speed}", lines[1])


def test_progress_is_not_reported_in_the_first_second() -> None:
    from fastio.engine.delayed_progress import after_a_second

    reports: list[int] = []
    on_progress = after_a_second(lambda done, total: reports.append(done))
    assert on_progress is not None
    on_progress(1, 2)
    assert reports == []
    assert after_a_second(None) is None
