"""Tasks in which processes of the ranks write steps, and some of them are killed; see :mod:`step_tasks`."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastio
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


def silent(folder: str, count: int) -> Any:
    """Save a step while the process of rank 1, on another host, stands still; returns the error and the steps."""
    group = group_of(count)
    if group is None:
        return None
    rank = dist.get_rank()
    with fastio.Checkpointer(folder, process_group=group, writer="process") as checkpointer:
        checkpointer.save(1, state_of(1)).written.result(_SECONDS)
        writes: Any = checkpointer._saver._writes  # type: ignore[union-attr]
        process, assignments, has_ended = writes._process, writes._writer._assignments, threading.Event()
        outcome, seconds = process._outcome, assignments._seconds

        def noted(task: Any) -> Any:
            try:
                return outcome(task)
            finally:
                has_ended.set()

        process._outcome, assignments._seconds = noted, 1.0
        if rank == 1:
            stop(process.pid)
        with elsewhere(rank == 1):
            handle = checkpointer.save(2, state_of(2))
        if rank == 0:
            has_ended.wait(_SECONDS)
        dist.barrier(group)
        if rank == 1:
            os.kill(process.pid, signal.SIGCONT)
        error = told(lambda: handle.written.result(_SECONDS))
        dist.barrier(group)
        process._outcome, assignments._seconds = outcome, seconds
        checkpointer.save(3, state_of(3)).written.result(_SECONDS)
        return error, checkpointer.steps()


def fail(folder: str, count: int, how: str, victim: int) -> Any:
    """Save a step, and one of which a rank's process fails or is killed, and a third one; returns errors and steps."""
    group = group_of(count)
    if group is None:
        return None
    is_victim = dist.get_rank() == victim
    with fastio.Checkpointer(folder, process_group=group, writer="process", when_busy="queue") as checkpointer:
        checkpointer.save(1, state_of(1)).written.result(_SECONDS)
        pid = pid_of(checkpointer)
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        if is_victim and how == "disk":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        if is_victim and how in ("elsewhere", "queued"):
            stop(pid)
        if is_victim and how == "idle":
            os.kill(pid, signal.SIGKILL)
            while not checkpointer._saver._writes._process.is_lost:  # type: ignore[union-attr]
                time.sleep(0.001)
        dist.barrier(group)
        state = state_of(2)
        if is_victim and how == "shape":
            state["all"] = torch.ones(3)
        handles = []
        for step in (2, 3) if how == "queued" else (2,):
            with contextlib.suppress(fastio.RankError), elsewhere(is_victim and how == "elsewhere"):
                handles.append(checkpointer.save(step, state))
        if is_victim and how in ("elsewhere", "queued"):
            os.kill(pid, signal.SIGKILL)
        errors = [told(lambda handle=handle: handle.written.result(_SECONDS)) for handle in handles]
        dist.barrier(group)
        left = sorted(path.name for path in Path(folder).iterdir())
        dist.barrier(group)
        if how == "disk":
            resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        checkpointer.save(4, state_of(4)).written.result(_SECONDS)
        restored = checkpointer.restore()
        assert restored is not None
        return errors, left, checkpointer.steps(), is_state(restored.state, 4)


def die(folder: str, victims: list[int], steps: int) -> Any:
    """Save steps; these ranks are killed when all is copied."""
    checkpointer = fastio.Checkpointer(folder, writer="process", when_busy="queue")
    handles = [checkpointer.save(step, state_of(step, 8)) for step in range(steps)]
    dist.barrier()
    if dist.get_rank() in victims:
        os.kill(os.getpid(), signal.SIGKILL)
    errors = [told(lambda handle=handle: handle.written.result(_SECONDS))[0] for handle in handles]
    with contextlib.suppress(fastio.RankLostError):
        checkpointer.close()
    return errors


def die_without_process(folder: str, victim: int) -> Any:
    """Save a step, and another one while a rank's process stands still; then all ranks and that process are killed."""
    checkpointer = fastio.Checkpointer(folder, writer="process", when_busy="queue")
    checkpointer.save(0, state_of(0)).written.result(_SECONDS)
    pid = pid_of(checkpointer)
    if dist.get_rank() == victim:
        stop(pid)
    dist.barrier()
    checkpointer.save(1, state_of(1))
    dist.barrier()
    if dist.get_rank() == victim:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
