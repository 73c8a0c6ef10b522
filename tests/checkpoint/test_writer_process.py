"""``writer="process"``: steps that were copied are written, whatever becomes of the training or of the writer."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import mmap
import os
import signal
import socket
import sys
import threading
import time
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import warm_python
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.folder import lock
from fastio.checkpoint.saving.shared_staging import SharedStaging
from fastio.checkpoint.writer_process import process
from interrupting import descriptors
from trainings import folder_of, is_of, state_of

TRAINING = """
import os, signal, sys
import torch
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.writer_process import process
from trainings import state_of

folder, place = sys.argv[1:]
die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if place == "sending":
    process.send_handle = die
checkpointer = Checkpointer(folder, writer="process", when_busy="queue", progress=None)
large = {"large": torch.arange(8 << 20)} if place == "writing" else {}
for step in range(2 if place == "queued" else 1):
    handle = checkpointer.save(step, state_of(step) | large)
if place == "writing":
    while handle.progress[0] == 0:
        pass
die()
"""


def pid_of(checkpointer: Checkpointer) -> int:
    return checkpointer._saver._writes._process._process.pid


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


@pytest.mark.usefixtures("warm")
def test_process_writes_steps_and_keeps_the_last(tmp_path: Path) -> None:
    before = descriptors()
    with Checkpointer(tmp_path, writer="process", when_busy="queue", keep=2) as checkpointer:
        pid = pid_of(checkpointer)
        handles = [checkpointer.save(step, state_of(step), {"step": step}) for step in range(5)]
        results = [handle.written.result(timeout=60) for handle in handles]
        assert all(isinstance(result, fastio.SaveResult) and result.durable for result in results)
        checkpointer.wait()
        assert checkpointer.steps() == [3, 4]
        for step in (3, 4):
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert is_of(restored.state, step)
            assert restored.metadata == {"step": step}
        assert pid_of(checkpointer) == pid
        assert "written by a process" in repr(checkpointer)
        assert sorted(os.listdir(folder_of(tmp_path, 4))) == ["manifest.json", "state.pt"]
    assert not is_there(pid)
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000003", "step-0000000004"]
    assert [one for one in descriptors() if "fastio-" in one] == [one for one in before if "fastio-" in one]


@pytest.mark.usefixtures("warm")
def test_process_maps_the_copy_once_until_it_is_freed(tmp_path: Path) -> None:
    def mapped() -> list[str]:
        lines = Path(f"/proc/{pid_of(checkpointer)}/maps").read_text().splitlines()
        return [line.split()[0] for line in lines if "fastio-checkpoint" in line]

    small, large = {"tensor": torch.ones(1 << 20)}, {"tensor": torch.ones(2 << 20)}
    found = []
    with Checkpointer(tmp_path, writer="process", keep=None) as checkpointer:
        for step, state in enumerate([small, small, large, small]):
            checkpointer.save(step, state).written.result(timeout=60)
            found.append(mapped())
            assert len(found[-1]) == 1  # also after the first copy, which was too small, was freed
        assert found[0] == found[1]
        assert found[2] == found[3]
        assert all(torch.equal(checkpointer.restore(n).state["tensor"], small["tensor"]) for n in (0, 1, 3))
        assert torch.equal(checkpointer.restore(2).state["tensor"], large["tensor"])


def test_shared_memory_is_freed_where_another_process_maps_it() -> None:
    staging = SharedStaging(1 << 20)
    other = os.dup(staging.fd)
    try:
        pid = os.fork()
        if pid == 0:  # a child must not free its parent's memory
            staging.close()
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert os.fstat(other).st_blocks * 512 == 1 << 20
        staging.close()
        assert os.fstat(other).st_blocks == 0
        staging.close()
    finally:
        os.close(other)


@pytest.mark.usefixtures("warm")
def test_incremental_steps_link_to_the_step_before(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, writer="process", incremental=True, keep=None) as checkpointer:
        for step in range(3):
            checkpointer.save(step, state_of(step))
        checkpointer.wait()
        assert not list(folder_of(tmp_path, 2).glob("state.pt"))
        assert list(folder_of(tmp_path, 2).glob("step-0000000000.*"))
        for step in range(3):
            assert is_of(checkpointer.restore(step).state, step)


@pytest.mark.usefixtures("warm")
def test_state_beyond_the_budget_is_written_by_a_thread(tmp_path: Path) -> None:
    large = {"large": torch.arange(5 << 20)}
    with Checkpointer(tmp_path, writer="process", memory_budget="33MiB", keep=None) as checkpointer:
        checkpointer.save(0, state_of(0))
        checkpointer.save(1, large)
        checkpointer.save(2, state_of(2))
        assert torch.equal(checkpointer.restore(1).state["large"], large["large"])
        assert is_of(checkpointer.restore().state, 2)


@pytest.mark.usefixtures("warm")
def test_errors_of_the_process_are_raised_here(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, writer="process") as checkpointer:
        folder_of(tmp_path, 0).symlink_to("elsewhere")
        handle = checkpointer.save(0, state_of(0))
        assert isinstance(handle.written.exception(timeout=60), fastio.CheckpointError)
        assert "there is something else than a folder" in str(handle.written.exception())
        folder_of(tmp_path, 1).mkdir()
        folder_of(tmp_path, 1).joinpath("manifest.json").mkdir()
        checkpointer.save(1, state_of(1))
        with pytest.raises(fastio.CheckpointError, match="there is something else than a regular file"):
            checkpointer.save(2, state_of(2))
        checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [2]


@pytest.mark.usefixtures("warm")
def test_killed_process_loses_its_step_with_an_error_and_the_next_save_starts_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path, writer="process", when_busy="queue") as checkpointer:
        checkpointer.save(0, state_of(0)).written.result(timeout=60)
        first = pid_of(checkpointer)
        os.kill(first, signal.SIGKILL)  # while it has nothing to do
        with caplog.at_level(logging.WARNING, "fastio.checkpoint"):
            while is_there(first):
                time.sleep(0.001)
            checkpointer.save(1, state_of(1)).written.result(timeout=60)
        assert "the writer process has ended; another one is started" in caplog.text
        second = pid_of(checkpointer)
        stop(second)
        handles = [checkpointer.save(step, state_of(step)) for step in (2, 3)]
        os.kill(second, signal.SIGKILL)
        for step, handle in enumerate(handles, 2):
            error = handle.written.exception(timeout=60)
            assert f"step {step} was not written: the writer process was ended by SIGKILL; save again" in str(error)
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000", "step-0000000001"]
        checkpointer.save(4, state_of(4))
        checkpointer.wait()
        assert checkpointer.steps() == [0, 1, 4]
        assert is_of(checkpointer.restore().state, 4)
        assert not is_there(second)


@pytest.mark.usefixtures("warm")
def test_exit_in_a_callback_is_raised_once_and_later_steps_are_written(tmp_path: Path) -> None:
    def leave(_: object) -> None:
        sys.exit("the callback ends")

    with Checkpointer(tmp_path, keep=1, writer="process") as checkpointer:
        checkpointer.save(0, state_of(0)).written.result(timeout=60)
        stop(pid_of(checkpointer))
        checkpointer.save(1, state_of(1)).written.add_done_callback(leave)
        os.kill(pid_of(checkpointer), signal.SIGCONT)
        checkpointer._saver._queue.last.join()
        with pytest.raises(SystemExit, match="the callback ends"):
            checkpointer.wait()
        for step in (2, 3):
            checkpointer.save(step, state_of(step)).written.result(timeout=60)
        assert checkpointer.steps() == [3]


def test_forked_child_that_frees_the_shared_memory_keeps_its_own_at_that_address() -> None:
    staging = SharedStaging(16 << 20)
    pid = os.fork()
    if pid == 0:
        libc = ctypes.CDLL(None)
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        address, flags = staging.address, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x10  # MAP_FIXED
        libc.mmap(address, 16 << 20, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        del staging
        ctypes.memset(address, 1, 16 << 20)  # SIGSEGV if it was unmapped
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize("said", [b"", b"\0\0\1\0half of a message"])
def test_step_that_was_sent_to_a_process_at_its_end_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """A killed process takes messages until the system ends it: later, where others use the processors."""
    ends = []

    def pipe() -> Any:
        own, other = Pipe()
        ends.append(os.dup(other.fileno()))
        return own, other

    monkeypatch.setattr(process, "Pipe", pipe)
    with Checkpointer(tmp_path, writer="process") as checkpointer:
        checkpointer.save(0, state_of(0)).written.result(timeout=60)
        checkpointer._saver._queue.last.join()
        os.kill(pid_of(checkpointer), signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(process.WriterProcess, "is_lost", False)
            handle = checkpointer.save(1, state_of(1))
        with socket.socket(fileno=ends.pop()) as end:
            end.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while end.recv(1 << 20):  # what is left unread makes the end of the socket another error
                    pass
            end.send(said)
        with pytest.raises(fastio.CheckpointError, match="step 1 was not written: the writer process was ended by SIG"):
            handle.written.result(timeout=60)
        checkpointer.save(2, state_of(2)).written.result(timeout=60)
        assert checkpointer.steps() == [0, 2]
        assert is_of(checkpointer.restore().state, 2)
    os.close(ends.pop())


@pytest.mark.usefixtures("warm")
def test_interrupted_while_a_step_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may have the step, and its copy is free for the next save: it must not write that."""
    stage = process.WriterProcess.stage

    def interrupted(*arguments: Any) -> None:
        stage(*arguments)
        raise KeyboardInterrupt

    with Checkpointer(tmp_path, writer="process") as checkpointer:
        checkpointer.save(0, state_of(0)).written.result(timeout=60)
        stop(pid_of(checkpointer))
        with monkeypatch.context() as patch:
            patch.setattr(process.WriterProcess, "stage", interrupted)
            with pytest.raises(KeyboardInterrupt):
                checkpointer.save(1, state_of(1))
        checkpointer.save(2, state_of(2))
        checkpointer.wait()
        assert checkpointer.steps() == [0, 2]
        assert is_of(checkpointer.restore(2).state, 2)


@pytest.mark.usefixtures("warm")
def test_step_that_is_not_written_in_time_after_a_signal_is_not_there(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, writer="process") as checkpointer:
        checkpointer.on_signal(signal.SIGUSR1, within=0.3)
        checkpointer.save(0, state_of(0)).written.result(timeout=60)
        pid = pid_of(checkpointer)
        stop(pid)
        signal.raise_signal(signal.SIGUSR1)
        error = checkpointer.save(1, state_of(1)).written.exception(timeout=60)
        assert "step 1 was not written within 0.3 s of SIGUSR1" in str(error)
        assert not is_there(pid)
        assert checkpointer.steps() == [0]
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]


@pytest.mark.usefixtures("warm")
def test_all_queued_steps_name_the_signal_when_their_time_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread of the second step notices it first, and ends the process that writes the first one."""
    monkeypatch.setattr(process, "_TICK_SECONDS", 60)
    with Checkpointer(tmp_path, writer="process", when_busy="queue") as checkpointer:
        checkpointer.on_signal(signal.SIGUSR1, within=0.3)
        stop(pid_of(checkpointer))
        handles = [checkpointer.save(0, state_of(0))]
        threading.Timer(0.1, os.kill, [os.getpid(), signal.SIGUSR1]).start()
        handles.append(checkpointer.save(1, state_of(1)))
        for step, handle in enumerate(handles):
            error = str(handle.written.exception(timeout=60))
            assert f"step {step} was not written within 0.3 s of SIGUSR1" in error


@pytest.mark.usefixtures("warm")
def test_forked_child_does_not_keep_the_process(tmp_path: Path) -> None:
    checkpointer = Checkpointer(tmp_path, writer="process")
    checkpointer.save(0, state_of(0))
    pid = pid_of(checkpointer)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(writing)
            checkpointer.close()
            os.read(reading, 1)
            status = 0
        finally:
            os._exit(status)
    checkpointer.close()
    assert not is_there(pid)  # though the child is
    with Checkpointer(tmp_path) as again:
        assert again.steps() == [0]
    os.close(reading)
    os.close(writing)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(("place", "steps"), [("sending", []), ("queued", [0, 1]), ("writing", [0])])
def test_killed_training_leaves_whole_steps(tmp_path: Path, place: str, steps: list[int]) -> None:
    """The process is a real one: the training dies long before it has started, except where it waits for it."""
    ended = warm_python.run(TRAINING, str(tmp_path), place)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    with Checkpointer(tmp_path) as checkpointer:  # waits for the writer process
        assert checkpointer.steps() == steps
        for step in steps:
            checkpointer.verify(step)
            assert is_of(checkpointer.restore(step).state, step)
        assert sorted(os.listdir(tmp_path)) == [".lock", *(f"step-{step:010d}" for step in steps)]
        checkpointer.save(7, state_of(7))
        checkpointer.wait()
        assert checkpointer.latest() == 7


def test_process_that_cannot_start_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_CODE", "import sys; sys.exit('no such module')")
    with Checkpointer(tmp_path, writer="process") as checkpointer:
        handle = checkpointer.save(0, state_of(0))
        error = str(handle.written.exception(timeout=60))
        assert "step 0 was not written: the writer process ended with status 1: no such module" in error
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(fastio.CheckpointError, match="no process to write steps could be started"):
        Checkpointer(tmp_path, writer="process")
    with Checkpointer(tmp_path):
        pass  # the lock is free
    with pytest.raises(fastio.CheckpointError, match="no process to write steps could be started"):
        Checkpointer(tmp_path / "new", writer="process")
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"writer": "fork"}, "writer='fork': expected 'thread' or 'process'"),
        ({"asynchronous": False}, "asynchronous=False writes at once"),
        ({"policy": fastio.dicts.WDic()}, "it cannot share policy=<Dictionary>"),
    ],
)
def test_process_and_other_settings(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Checkpointer(tmp_path / "run", **{"writer": "process", **settings})
    assert not (tmp_path / "run").exists()


def test_wait_for_a_writer_process_that_outlived_its_training_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The lock's holder stands for the writer process; it ends once the warning is there."""
    monkeypatch.setattr(lock, "_ENDING_SECONDS", 0.1)
    held = lock.FolderLock(str(tmp_path))
    (tmp_path / ".lock").write_text(
        f"process {2**22 + 1} on {os.uname().nodename} (its writer process is {os.getpid()})\n"
    )

    def released(record: logging.LogRecord) -> bool:
        held.release()
        return True

    with caplog.filtering(released):
        lock.FolderLock(str(tmp_path)).release()
    assert f"waiting for process {os.getpid()}, which writes the last steps of a training that died" in caplog.text


def test_lock_that_no_writer_process_holds_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_ENDING_SECONDS", 0.1)
    gone, host = 2**22 + 1, os.uname().nodename
    with Checkpointer(tmp_path):
        for writer in ("", f" (its writer process is {gone})", " (its writer process is x)"):
            (tmp_path / ".lock").write_text(f"process {gone} on {host}{writer}\n")
            with pytest.raises(fastio.FolderInUseError, match=f"process {gone} on"):
                lock.FolderLock(str(tmp_path))
        for name in (f"process {os.getpid()} on {host}", f"process {gone} on another"):
            (tmp_path / ".lock").write_text(f"{name} (its writer process is {os.getpid()})\n")
            with pytest.raises(fastio.FolderInUseError, match=name):
                lock.FolderLock(str(tmp_path))
