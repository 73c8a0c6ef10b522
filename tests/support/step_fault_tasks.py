"""Tasks in which a rank fails, is late, or is asked to stop; see :mod:`step_tasks`."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
import signal
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import fastio
from fastio.checkpoint.ranks import gloo, shared_folder
from fastio.checkpoint.ranks.gloo import Gloo
from fastio.checkpoint.saving import rank_step
from rank_tasks import mesh_of

_SECONDS = 60


def group_of(count: int) -> Any:
    mesh = mesh_of(count)
    return None if mesh is None else mesh.get_group()


def state_of(seed: int, megabytes: int = 1) -> dict[str, Any]:
    """A plain tensor of all ranks, and one of each rank."""
    rank = dist.get_rank()
    size = megabytes << 17
    return {"all": torch.full((4096,), seed), f"rank {rank}": torch.full((size,), seed + rank), "step": seed}


def is_state(state: dict[str, Any], seed: int, ranks: int = 2) -> bool:
    """Whether all of a state is that of one seed."""
    own = all(bool((state[f"rank {r}"] == seed + r).all()) for r in range(ranks) if f"rank {r}" in state)
    return own and bool((state["all"] == seed).all()) and state["step"] == seed


def await_path(path: Path) -> None:
    end = time.monotonic() + _SECONDS
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


@contextlib.contextmanager
def late(is_late: bool, until: Path) -> Iterator[None]:
    """Inside, a late rank's files are not written before a path exists."""
    write = rank_step.write_layout

    def wait_and_write(*arguments: Any, **options: Any) -> Any:
        await_path(until)
        return write(*arguments, **options)

    if is_late:
        rank_step.write_layout = wait_and_write
    try:
        yield
    finally:
        rank_step.write_layout = write


def told(work: Any) -> tuple[str, str, dict[int, str]]:
    """The class, the text and the ranks' errors of the error that ``work`` raises."""
    try:
        work()
    except Exception as error:
        inner = {rank: type(one).__name__ for rank, one in getattr(error, "errors", {}).items()}
        return type(error).__name__, str(error), inner
    return "", "", {}


def names(folder: str) -> list[str]:
    """All that is in a folder of steps, but the lock."""
    root = Path(folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.name != ".lock")


def fail(folder: str, count: int, how: str) -> Any:
    """Save a step, fail to save one on rank 1, and save another."""
    group = group_of(count)
    if group is None:
        return None
    with fastio.Checkpointer(folder, process_group=group) as checkpointer:
        checkpointer.save(1, state_of(1))
        checkpointer.wait()
        dist.barrier(group)
        before = names(folder)
        dist.barrier(group)
        state: Any = state_of(2)
        if dist.get_rank() == 1 and how == "capture":
            state["lambda"] = lambda: None
        if dist.get_rank() == 1 and how == "kind":
            state["step"] = torch.ones(3)
        if how == "reserved":
            state["__fastio__"] = {"tree": [2]}
        if dist.get_rank() == 1 and how == "shape":
            state["all"] = torch.ones(3)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if dist.get_rank() == 1 and how == "disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
        error = told(lambda: checkpointer.save(2, state).written.result(_SECONDS))
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
        dist.barrier(group)
        left = names(folder)
        dist.barrier(group)
        checkpointer.save(3, state_of(3))
        checkpointer.wait()
        return error, before == left, checkpointer.steps()


def change(folder: str, count: int) -> Any:
    """Save states that change shapes, names, a rank's tree, and one with a step that fails on a rank; restore each."""
    group = group_of(count)
    if group is None:
        return None
    rank = dist.get_rank()
    plain = {"a": torch.arange(5.0), f"of {rank}": torch.full((3,), rank), "list": [1, {"b": torch.ones(2)}]}
    larger = {**plain, "a": torch.arange(7.0)}
    states: list[dict[str, Any]] = [
        *(plain, plain, larger, {**larger, "own": rank}, larger, {**plain, "more": torch.ones(1)}, plain),
        {**plain, f"of {rank}": torch.full((3 + rank,), rank), "refused": (lambda: None) if rank else 0},
        *(plain, {**plain, "list.1": {"b": 3}, "list": []}, plain),
    ]
    saved, found = [], []
    with fastio.Checkpointer(folder, keep=None, process_group=group) as checkpointer:
        for step, state in enumerate(states):
            error, _, _ = told(lambda step=step, state=state: checkpointer.save(step, state).written.result(_SECONDS))
            saved.append(error)
        for step in checkpointer.steps():
            restored = checkpointer.restore(step)
            found.append((step, str(restored.state) == str(states[step])))
    return saved, found


def straggle(folder: str, count: int, gate: str) -> Any:
    """Save two steps while rank 1 writes nothing; returns how many copies each rank has, and the steps."""
    group = group_of(count)
    if group is None:
        return None
    rank = dist.get_rank()
    with late(rank == 1, Path(gate)), fastio.Checkpointer(folder, process_group=group, when_busy="queue") as one:
        one.save(1, state_of(1))
        first = one._saver._queue.last  # type: ignore[union-attr]
        while rank == 0 and first.reads_memory:  # type: ignore[union-attr]
            time.sleep(0.001)
        working = first.is_working  # type: ignore[union-attr]
        one.save(2, state_of(2))
        copies = len(one._saver._snapshots._users)  # type: ignore[union-attr]
        dist.barrier(group)
        Path(gate).touch()
        one.wait()
        restored = one.restore()
        assert restored is not None
        return working, copies, one.steps(), is_state(restored.state, 2)


def skip(folder: str, count: int, gate: str, when_busy: Any) -> Any:
    """Save while a step is written, and then; returns which steps were saved."""
    group = group_of(count)
    if group is None:
        return None
    rank = dist.get_rank()
    saved = []
    with late(rank == 1, Path(gate)), fastio.Checkpointer(folder, process_group=group, when_busy=when_busy) as one:
        saved.append(bool(one.save(1, state_of(1))))
        saved.append(bool(one.save(2, state_of(2))))
        Path(gate).touch()
        one.wait()
        for step in range(3, 20):  # one rank knows of the end before the other
            saved.append(bool(one.save(step, state_of(step, 0))))
            time.sleep(0.001 * (step % 3) * rank)
        one.wait()
        saved.append(bool(one.save(20, state_of(20))))
        one.wait()
        return saved, one.steps()


def stop(folder: str, count: int) -> Any:
    """Train until rank 1 gets a signal; returns the step at which each rank stopped, and the steps."""
    group = group_of(count)
    if group is None:
        return None
    with fastio.Checkpointer(folder, process_group=group, when_busy="skip") as checkpointer:
        checkpointer.on_signal(signal.SIGTERM, within=60)
        stopped = -1
        for step in range(20):
            if step == 5 and dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if checkpointer.should_stop:
                stopped = step
                last = bool(checkpointer.save(step, state_of(step)))
                later = bool(checkpointer.save(step + 1, state_of(step)))
                break
        checkpointer.wait()
        return stopped, last, later, checkpointer.steps()


def two_writers(folder: str, count: int) -> Any:
    group = group_of(count)
    if group is None:
        return None
    with fastio.Checkpointer(folder, process_group=group) as checkpointer:
        checkpointer.save(1, state_of(1))
        return told(lambda: fastio.Checkpointer(folder, process_group=group))


def other_folders(folders: list[str], count: int) -> Any:
    group = group_of(count)
    if group is None:
        return None
    shared_folder._SEEN_SECONDS = 0.1
    try:
        return told(lambda: fastio.Checkpointer(folders[dist.get_rank()], process_group=group))
    finally:
        shared_folder._SEEN_SECONDS = 10.0


def other_calls(folder: str, count: int) -> Any:
    """Save different steps, and call different methods; then save the same step."""
    group = group_of(count)
    if group is None:
        return None
    with fastio.Checkpointer(folder, process_group=group) as checkpointer:
        rank = dist.get_rank()
        calls: list[Callable[[], object]] = [
            lambda: checkpointer.save(rank, state_of(1)),
            lambda: checkpointer.verify(1),
            checkpointer.restore,
            checkpointer.latest,
            lambda: checkpointer.save(0, state_of(1)),
            checkpointer.prune,
        ]
        errors = [told(calls[0]), *(told(calls[number + rank]) for number in range(1, len(calls) - 1))]
        checkpointer.save(5, state_of(5))
        checkpointer.wait()
        steps = checkpointer.steps()
    made = told(lambda: fastio.Checkpointer(folder, process_group=group, read_only=rank == 1))
    return errors, steps, made


def replaced(folder: str, count: int) -> Any:
    """Save a step twice, beside other steps that are not kept; returns what is left."""
    group = group_of(count)
    if group is None:
        return None
    rank = dist.get_rank()
    with fastio.Checkpointer(folder, 2, process_group=group) as checkpointer:
        for seed, step in enumerate((3, 4, 5, 4)):
            if seed == 3:
                (Path(folder) / "step-0000000004" / f"notes {rank}").write_text("a user's")
            checkpointer.save(step, state_of(seed))
        checkpointer.wait()
        restored = checkpointer.restore()
        assert restored is not None
        found = checkpointer.latest(), checkpointer.steps(), is_state(restored.state, 3), checkpointer.prune()
    dist.barrier(group)
    return found, names(folder)


def damaged(folder: str, count: int) -> Any:
    """Restore the newest step, and a damaged one; returns the warnings, the step, and the errors."""
    group = group_of(count)
    if group is None:
        return None
    with fastio.Checkpointer(folder, process_group=group, read_only=True) as checkpointer:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            restored = checkpointer.restore()
        assert restored is not None
        error = told(lambda: checkpointer.restore(2))
        checked = told(lambda: checkpointer.verify(2))
        return [str(w.message) for w in caught], restored.step, is_state(restored.state, 1), error, checked


def save_steps(folder: str, count: int, steps: int) -> None:
    group = group_of(count)
    if group is None:
        return
    with fastio.Checkpointer(folder, process_group=group) as checkpointer:
        for step in range(1, steps + 1):
            checkpointer.save(step, state_of(step))


def interrupted(folder: str, count: int, gate: str) -> Any:
    """Interrupt rank 0 while it waits for rank 1, which comes later."""
    group = group_of(count)
    if group is None:
        return None
    checkpointer = fastio.Checkpointer(folder, process_group=group)
    checkpointer.save(1, state_of(1))
    checkpointer.wait()
    if dist.get_rank() == 1:
        await_path(Path(gate))
        return told(checkpointer.restore)[0], told(checkpointer.close)[0]
    interrupt = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    interrupt.start()
    try:
        checkpointer.restore()
    except KeyboardInterrupt:
        Path(gate).touch()
        return told(checkpointer.latest)[0], told(checkpointer.close)[0]
    return None


def restored_without_rank_1(folder: str) -> Any:
    """Restore while rank 1 ends; rank 0 is interrupted while it finds out which rank that is."""
    checkpointer = fastio.Checkpointer(folder)
    rank = dist.get_rank()
    if rank == 1:
        os._exit(1)
    if rank == 0:
        sleep, is_first = time.sleep, itertools.count()

        def interrupted(seconds: float) -> None:
            if Gloo._absent.__name__ in {frame.name for frame in traceback.extract_stack()} and not next(is_first):
                os.kill(os.getpid(), signal.SIGINT)
            sleep(seconds)

        gloo.time.sleep = interrupted  # type: ignore[attr-defined]
    try:
        checkpointer.restore()
    except KeyboardInterrupt as error:
        gloo.time.sleep = sleep  # type: ignore[attr-defined]
        return type(error).__name__, told(checkpointer.latest)[1].partition(":")[0]
    except fastio.RankLostError as error:
        return type(error).__name__, str(error).partition(" (")[0]


def save_until_killed(folder: str, ready: str) -> Any:
    """Save steps for ever; returns the error of a rank that is left when another one is killed."""
    step = 0
    try:
        with fastio.Checkpointer(folder) as checkpointer:
            restored = checkpointer.restore()
            step = 0 if restored is None else restored.step
            assert restored is None or is_state(restored.state, step)
            while True:
                step += 1
                checkpointer.save(step, state_of(step))
                checkpointer.wait()
                with Path(f"{ready}.{dist.get_rank()}").open("a") as file:
                    file.write(f"{step}\n")
    except fastio.RankLostError as error:
        return type(error).__name__, str(error)


def changed_copy(folder: str, count: int) -> Any:
    """Save while a byte of rank 1's copy changes before it is written; returns the errors of looking at the step."""
    group = group_of(count)
    if group is None:
        return None
    lay_out = rank_step._lay_out

    def change_and_lay_out(state: Any, items: Any) -> Any:
        state.tensor("rank 1").view(torch.uint8)[1234] ^= 1
        return lay_out(state, items)

    with fastio.Checkpointer(folder, process_group=group) as checkpointer:
        if dist.get_rank() == 1:
            rank_step._lay_out = change_and_lay_out
        live = state_of(1)
        try:
            checkpointer.save(1, live)
            checkpointer.wait()
        finally:
            rank_step._lay_out = lay_out
        return is_state(live, 1), told(lambda: checkpointer.verify(1)), told(lambda: checkpointer.restore(1))


def outside(count: int) -> Any:
    """Make a Checkpointer on a group of ranks that this one is not in."""
    group = dist.new_group(list(range(count)))
    if dist.get_rank() < count:
        return None
    return told(lambda: fastio.Checkpointer("run", process_group=group))
