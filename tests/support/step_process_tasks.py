"""Tasks in which processes of the ranks write steps, and some of them are killed; see :mod:`step_tasks`."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastio
from fastio.checkpoint.folder.lock import is_running
from step_fault_tasks import group_of, is_state, state_of, told

_SECONDS = 60


def pid_of(checkpointer: Any) -> int:
    pid: int = checkpointer._saver._writes._process.pid
    return pid


def stop(pid: int) -> None:
    """Stop a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        time.sleep(0.001)


def save_steps(folder: str, count: int, options: dict[str, Any]) -> Any:
    """Save five steps by processes; returns the steps, how many are whole, and the data files of the last."""
    group = group_of(count)
    if group is None:
        return None
    same = {"same": torch.arange(1 << 18), f"same {dist.get_rank()}": torch.arange(1 << 18)}
    with fastio.Checkpointer(folder, 2, process_group=group, writer="process", **options) as checkpointer:
        pid = pid_of(checkpointer)
        handles = [checkpointer.save(step, state_of(step) | same, {"step": step}) for step in range(5)]
        results = [handle.written.result(_SECONDS) for handle in handles]
        checkpointer.wait()
        whole = 0
        for step in checkpointer.steps():
            checkpointer.verify(step)
            restored = checkpointer.restore(step)
            assert restored is not None
            assert restored.metadata == {"step": step}
            whole += is_state(restored.state, step)
        files = len([*(Path(folder) / "step-0000000004").glob(f"__{dist.get_rank()}_*")])
        told = checkpointer.steps(), whole, files, all(result.durable for result in results)
        return *told, pid_of(checkpointer) == pid, "written by a process" in repr(checkpointer)


def over_budget(folder: str, count: int) -> Any:
    """Save steps of which one does not fit into the budget of rank 1: threads write that."""
    group = group_of(count)
    if group is None:
        return None
    large = {"large": torch.arange(5 << 20)} if dist.get_rank() == 1 else {}
    with fastio.Checkpointer(
        folder, None, memory_budget="33MiB", process_group=group, writer="process"
    ) as checkpointer:
        for step in range(4):
            checkpointer.save(step, state_of(step) | (large if step in (1, 2) else {}))
        whole = []
        for step in range(4):
            restored = checkpointer.restore(step)
            assert restored is not None
            whole.append(is_state(restored.state, step))
        return checkpointer.steps(), whole


@contextlib.contextmanager
def elsewhere(is_elsewhere: bool) -> Iterator[None]:
    """Inside, the process of this rank is taken for one of another host."""
    name = socket.gethostname
    if is_elsewhere:
        socket.gethostname = lambda: "elsewhere"
    try:
        yield
    finally:
        socket.gethostname = name


def fail(folder: str, count: int, victim: int, hows: list[str]) -> Any:
    """Save steps of which a rank's process fails in one way after the other, and a good one after each.

    Returns for each way the errors of its steps, what was in the folder then, and whether the step after it is whole.
    """
    group = group_of(count)
    if group is None:
        return None
    answers = []
    with fastio.Checkpointer(folder, None, process_group=group, writer="process", when_busy="queue") as checkpointer:
        checkpointer.save(0, state_of(0)).written.result(_SECONDS)
        for number, how in enumerate(hows, 1):
            errors = _failed(checkpointer, 10 * number, how, dist.get_rank() == victim, group)
            dist.barrier(group)
            left = {path.name for path in Path(folder).iterdir()}
            dist.barrier(group)
            checkpointer.save(number, state_of(number)).written.result(_SECONDS)
            restored = checkpointer.restore(number)
            assert restored is not None
            answers.append((errors, left, is_state(restored.state, number)))
    return answers


def _failed(checkpointer: Any, step: int, how: str, is_victim: bool, group: Any) -> Any:
    """Save a step of which the process of the victim fails, or two; returns their errors."""
    process, pid = checkpointer._saver._writes._process, pid_of(checkpointer)
    limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    state = state_of(step)
    if is_victim and how == "disk":
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    if is_victim and how in ("silent", "elsewhere", "queued"):
        stop(pid)
    if is_victim and how == "ended":
        os.kill(pid, signal.SIGKILL)
        while not process.is_lost:
            time.sleep(0.001)
    if is_victim and how == "shape":
        state["all"] = torch.ones(3)
    dist.barrier(group)
    with impatient(checkpointer, how == "silent") as has_ended, elsewhere(is_victim and how in ("silent", "elsewhere")):
        steps = (step, step + 1) if how == "queued" else (step,)
        written = [saved(checkpointer, one, state) for one in steps]
        if how == "silent" and not is_victim:
            assert has_ended.wait(_SECONDS)
        dist.barrier(group)
        if is_victim and how in ("silent", "elsewhere", "queued"):
            os.kill(pid, signal.SIGCONT if how == "silent" else signal.SIGKILL)
        errors = [told(one) for one in written]
    if how == "disk":
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
    return errors


def saved(checkpointer: Any, step: int, state: Any) -> Callable[[], object]:
    """Save a step; returns a function that waits for it, or raises the error of the call."""
    try:
        handle = checkpointer.save(step, state)
    except fastio.RankError as error:
        return functools.partial(_raise, error)
    return functools.partial(handle.written.result, _SECONDS)


def _raise(error: Exception) -> None:
    raise error


@contextlib.contextmanager
def impatient(checkpointer: Any, is_impatient: bool) -> Iterator[threading.Event]:
    """Inside, the processes wait for each other for 1 s; the event is set when this rank's process gave a result."""
    writes: Any = checkpointer._saver._writes
    process, assignments, has_ended = writes._process, writes._writer._assignments, threading.Event()
    outcome, seconds = process._outcome, assignments._seconds

    def noted(task: Any) -> Any:
        try:
            return outcome(task)
        finally:
            has_ended.set()

    if is_impatient:
        process._outcome, assignments._seconds = noted, 1.0
    try:
        yield has_ended
    finally:
        assignments._seconds = seconds
        if is_impatient:
            del process._outcome


def die(folder: str, victims: list[int], steps: int, pids: str) -> Any:
    """Save steps; these ranks are killed when all is copied, and before their processes write."""
    checkpointer = fastio.Checkpointer(folder, writer="process", when_busy="queue")
    rank, pid = dist.get_rank(), pid_of(checkpointer)
    Path(f"{pids}.{rank}").write_text(f"{pid} {os.getpid()}")
    if rank in victims:
        stop(pid)
    handles = [checkpointer.save(step, state_of(step, 8)) for step in range(steps)]
    dist.barrier()
    if rank in victims:
        os.kill(os.getpid(), signal.SIGKILL)
    for victim in victims:
        process, training = map(int, Path(f"{pids}.{victim}").read_text().split())
        while is_running(training):
            time.sleep(0.001)
        os.kill(process, signal.SIGCONT)
    errors = [told(lambda handle=handle: handle.written.result(_SECONDS))[0] for handle in handles]
    with contextlib.suppress(fastio.RankLostError):
        checkpointer.close()
    return errors


def die_without_process(folder: str, victim: int, pids: str) -> Any:
    """Save a step, and another one while a rank's process stands still; then all ranks and that process are killed."""
    checkpointer = fastio.Checkpointer(folder, writer="process", when_busy="queue")
    checkpointer.save(0, state_of(0)).written.result(_SECONDS)
    pid = pid_of(checkpointer)
    Path(f"{pids}.{dist.get_rank()}").write_text(str(pid))
    if dist.get_rank() == victim:
        stop(pid)
    dist.barrier()
    checkpointer.save(1, state_of(1))
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
