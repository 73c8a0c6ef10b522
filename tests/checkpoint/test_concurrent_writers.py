"""Ctrl-C, two writers, stale locks, readers beside a writer, forks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fastio.checkpoint import Checkpointer
from fastio.errors import CheckpointError, FolderInUseError
from faults import Server
from trainings import is_of, state_of

# Ctrl-C


@pytest.mark.usefixtures("progress_at_once")
def test_interrupted_synchronous_save_leaves_no_step(tmp_path: Path) -> None:
    """A synchronous save writes from the tensors themselves, so an interrupt discards the step: they may change."""
    interrupting = False

    def progress(done: int, total: int) -> None:
        if interrupting:
            raise KeyboardInterrupt

    with Checkpointer(tmp_path, asynchronous=False, progress=progress) as checkpointer:
        state = {"large": torch.ones(8 << 20)}
        checkpointer.save(0, state)
        interrupting = True
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(1, state)
        interrupting = False
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
        state["large"].add_(1)
        checkpointer.save(1, state)
        restored = checkpointer.restore()
        assert restored is not None
        assert torch.equal(restored.state["large"], state["large"])


@pytest.mark.usefixtures("progress_at_once")
def test_interrupted_chunked_save_leaves_no_step(tmp_path: Path) -> None:
    """The interrupt comes between two chunks: training may change tensors before the second is copied."""
    go = threading.Event()

    def progress(done: int, total: int) -> None:
        if done < total and not go.is_set():  # runs on the writing thread
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert go.wait(300)

    with Checkpointer(tmp_path, memory_budget="32MiB", progress=progress) as checkpointer:
        state = {"large": torch.ones(20 << 20)}
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(1, state)
        state["large"].add_(1)
        go.set()
        checkpointer.wait()  # save raised the error, which is not raised again
        assert checkpointer.steps() == []
        checkpointer.save(2, state)
        restored = checkpointer.restore()
        assert restored is not None
        assert torch.equal(restored.state["large"], state["large"])


@pytest.mark.usefixtures("progress_at_once")
def test_ctrl_c_in_a_chunked_save_is_raised_by_the_context(tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:
        if done < total:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.1)  # so that the interrupt is raised before the next chunk

    with pytest.raises(KeyboardInterrupt), Checkpointer(tmp_path, memory_budget="32MiB", progress=progress) as one:
        one.save(1, {"large": torch.ones(40 << 20)})
    with Checkpointer(tmp_path) as another:
        assert another.steps() == []


@pytest.mark.usefixtures("progress_at_once")
def test_interrupted_close_can_be_called_again_and_releases_the_folder(tmp_path: Path) -> None:
    go = threading.Event()
    with pytest.raises(KeyboardInterrupt), Checkpointer(tmp_path, progress=interrupting_close(go)) as one:
        one.save(1, {"large": torch.ones(8 << 20)})
    with pytest.raises(FolderInUseError):
        Checkpointer(tmp_path)
    go.set()
    one.close()
    with Checkpointer(tmp_path) as another:
        assert another.steps() == [1]


@pytest.mark.usefixtures("progress_at_once")
def test_interrupted_close_releases_the_folder_when_the_write_ends(tmp_path: Path) -> None:
    go = threading.Event()
    one = Checkpointer(tmp_path, progress=interrupting_close(go))  # stays referenced, as in a notebook
    with pytest.raises(KeyboardInterrupt), one:
        one.save(1, {"large": torch.ones(8 << 20)})
    go.set()
    end = time.monotonic() + 300
    while time.monotonic() < end:
        try:
            with Checkpointer(tmp_path) as another:
                assert another.steps() == [1]
                return
        except FolderInUseError:
            time.sleep(0.01)
    pytest.fail("the folder is still locked")


def interrupting_close(go: threading.Event) -> Callable[[int, int], None]:
    """Return a progress function that interrupts the main thread in ``close``; the write then waits for ``go``."""

    def progress(done: int, total: int) -> None:
        if not go.is_set():
            while not main_thread_is_in("close"):
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert go.wait(300)

    return progress


def main_thread_is_in(function: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


# Two writers


def test_second_writer_in_one_process_raises(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on .*: close.. it, use"):
            Checkpointer(tmp_path)
        checkpointer.save(1, state_of(1))
        checkpointer.wait()
        with Checkpointer(tmp_path, read_only=True) as reader:
            assert reader.latest() == 1
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest() == 1


@pytest.mark.parametrize("child", [False, True], ids=["alone", "beside a child of its own"])
def test_lock_refuses_other_processes_and_ends_with_its_own(plain_server: Server, tmp_path: Path, child: bool) -> None:
    folder, ready = tmp_path / "run", tmp_path / "ready"
    holder = plain_server.start("checkpoints.hold", folder=str(folder), ready=str(ready), child=child)
    while not ready.exists():
        time.sleep(0.001)
    with pytest.raises(FolderInUseError, match=rf"run: process {holder.pid} on .* is writing checkpoints here"):
        Checkpointer(folder)
    with Checkpointer(folder, read_only=True) as reader:
        assert reader.steps() == [1]
    os.kill(holder.pid, signal.SIGKILL)
    assert holder.wait().status == -signal.SIGKILL
    try:
        if child:
            os.kill(int(ready.read_text()), 0)  # the child still runs
        with Checkpointer(folder) as checkpointer:
            assert checkpointer.latest() == 1
    finally:
        if child:
            os.kill(int(ready.read_text()), signal.SIGKILL)


def test_reader_sees_only_complete_steps_while_another_writes(tmp_path: Path) -> None:
    stop = threading.Event()
    problems: list[str] = []

    def read() -> None:
        with Checkpointer(tmp_path, read_only=True) as reader:
            last = 0
            while not stop.is_set():
                try:
                    restored = reader.restore()
                except Exception as error:
                    problems.append(repr(error))
                    return
                if restored is not None:
                    last, before = restored.step, last
                    if last < before or not is_of(restored.state, last):
                        problems.append(f"step {last} after step {before}")

    with Checkpointer(tmp_path, keep=1) as checkpointer:
        thread = threading.Thread(target=read)
        thread.start()
        for step in range(60):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        stop.set()
        thread.join()
    assert problems == []


# Forks


def test_fork_during_a_write_disturbs_neither_process(tmp_path: Path) -> None:
    state = {"tensor": torch.arange(2 << 20)}
    with Checkpointer(tmp_path) as checkpointer:
        for step in range(5):
            checkpointer.save(step, state)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12: a process with threads forks
                pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    checkpointer.close()
                    checkpointer.save(9, state)
                except CheckpointError as error:
                    status = 0 if "belongs to process" in str(error) else 2
                finally:
                    os._exit(status)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        checkpointer.wait()
        assert checkpointer.steps() == [2, 3, 4]
        for step in checkpointer.steps():
            checkpointer.verify(step)


def test_normal_exit_of_a_forked_child_disturbs_neither_process(tmp_path: Path) -> None:
    """The exit handlers of a forked child run without an effect on it or the parent."""
    code = f"""
import os, sys
import torch
from fastio.checkpoint import Checkpointer
checkpointer = Checkpointer({str(tmp_path)!r})
checkpointer.save(1, {{"tensor": torch.arange(1 << 20)}})
pid = os.fork()
if pid == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
checkpointer.close()
"""
    import sys

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=600)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.steps() == [1]
        checkpointer.verify(1)
