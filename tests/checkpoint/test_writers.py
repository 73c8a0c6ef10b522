"""Two writers, stale locks, readers beside a writer, forks, Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from fastio.checkpoint import Checkpointer
from fastio.errors import CheckpointError, FolderInUseError
from faults import Server
from trainings import is_of, state_of


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, None) as running:
        yield running


# Ctrl-C


@pytest.mark.usefixtures("told_at_once")
def test_a_save_that_is_interrupted(tmp_path: Path) -> None:
    """Written from the tensors themselves: what was begun is given up, for they may change now."""
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


@pytest.mark.usefixtures("told_at_once")
def test_a_save_in_pieces_that_is_interrupted(tmp_path: Path) -> None:
    """Between two pieces: training may have changed what the second has."""
    go = threading.Event()

    def progress(done: int, total: int) -> None:
        if done < total and not go.is_set():  # on the thread that writes
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert go.wait(30)

    with Checkpointer(tmp_path, memory_budget="32MiB", progress=progress) as checkpointer:
        state = {"large": torch.ones(20 << 20)}
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(1, state)
        state["large"].add_(1)
        go.set()
        checkpointer.wait()  # save said that it failed, and nobody says so twice
        assert checkpointer.steps() == []
        checkpointer.save(2, state)
        restored = checkpointer.restore()
        assert restored is not None
        assert torch.equal(restored.state["large"], state["large"])


@pytest.mark.usefixtures("told_at_once")
def test_ctrl_c_in_a_save_is_what_leaves_the_checkpointer(tmp_path: Path) -> None:
    def progress(done: int, total: int) -> None:
        if done < total:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            time.sleep(0.1)  # for it to be heard before the next piece

    with pytest.raises(KeyboardInterrupt), Checkpointer(tmp_path, memory_budget="32MiB", progress=progress) as one:
        one.save(1, {"large": torch.ones(40 << 20)})
    with Checkpointer(tmp_path) as another:
        assert another.steps() == []


@pytest.mark.usefixtures("told_at_once")
def test_ctrl_c_in_close_leaves_the_folder_to_others_once_the_step_is_there(tmp_path: Path) -> None:
    go = threading.Event()
    with pytest.raises(KeyboardInterrupt), Checkpointer(tmp_path, progress=interrupting_close(go)) as one:
        one.save(1, {"large": torch.ones(8 << 20)})
    with pytest.raises(FolderInUseError):
        Checkpointer(tmp_path)
    go.set()
    one.close()
    with Checkpointer(tmp_path) as another:
        assert another.steps() == [1]


@pytest.mark.usefixtures("told_at_once")
def test_ctrl_c_in_close_that_is_not_called_again(tmp_path: Path) -> None:
    go = threading.Event()
    one = Checkpointer(tmp_path, progress=interrupting_close(go))  # held, as by a notebook
    with pytest.raises(KeyboardInterrupt), one:
        one.save(1, {"large": torch.ones(8 << 20)})
    go.set()
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            with Checkpointer(tmp_path) as another:
                assert another.steps() == [1]
                return
        except FolderInUseError:
            time.sleep(0.01)
    pytest.fail("the folder is in use for ever")


def interrupting_close(go: threading.Event) -> Callable[[int, int], None]:
    """A progress that interrupts the main thread, once that waits in close, and has the writing wait for ``go``."""

    def progress(done: int, total: int) -> None:
        if not go.is_set():
            while not main_thread_is_in("close"):
                time.sleep(0.01)
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            assert go.wait(30)

    return progress


def main_thread_is_in(function: str) -> bool:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False


# Two writers


def test_two_writers_in_one_process(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        with pytest.raises(FolderInUseError, match=f"process {os.getpid()} on "):
            Checkpointer(tmp_path)
        checkpointer.save(1, state_of(1))
        checkpointer.wait()
        with Checkpointer(tmp_path, read_only=True) as reader:
            assert reader.latest() == 1
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.latest() == 1


@pytest.mark.parametrize("child", [False, True], ids=["alone", "beside a child of its own"])
def test_two_processes_and_the_lock_of_a_dead_one(server: Server, tmp_path: Path, child: bool) -> None:
    folder, ready = tmp_path / "run", tmp_path / "ready"
    holder = server.start("checkpoints.hold", folder=str(folder), ready=str(ready), child=child)
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
            os.kill(int(ready.read_text()), 0)  # it lives
        with Checkpointer(folder) as checkpointer:
            assert checkpointer.latest() == 1
    finally:
        if child:
            os.kill(int(ready.read_text()), signal.SIGKILL)


def test_reading_while_another_writes_and_prunes(tmp_path: Path) -> None:
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


def test_a_fork_while_a_step_is_written(tmp_path: Path) -> None:
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


def test_a_child_that_ends_as_programs_do(tmp_path: Path) -> None:
    """Its own way out, with all that is registered for it, disturbs neither it nor the parent."""
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

    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)
    with Checkpointer(tmp_path) as checkpointer:
        assert checkpointer.steps() == [1]
        checkpointer.verify(1)
