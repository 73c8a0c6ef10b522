"""The programs of the children that save checkpoints. Their arguments and results are JSON values."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
import types
import warnings
from typing import Any

import torch

import trainings
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import saver
from fastio.checkpoint.writer_process import main as writer_main
from fastio.checkpoint.writer_process import process
from faults import programs

Json = dict[str, Any]


def warm_up() -> None:
    """Train, save and restore once in the server; on one thread, because a process with threads must not fork."""
    torch.set_num_threads(1)
    folder = tempfile.mkdtemp()
    try:
        state = trainings.make()
        with Checkpointer(folder) as checkpointer:
            trainings.train(state)
            checkpointer.save(0, state)
            checkpointer.restore(into=state)
    finally:
        shutil.rmtree(folder)


class ForkedWriter:
    """Stands in for ``subprocess.Popen`` of a writer process, whose start takes two seconds."""

    def __init__(self, command: list[str], pass_fds: list[int], **_: Any) -> None:
        self.returncode: int | None = None
        kept = {number: os.dup(number) for number in pass_fds}  # a fork releases the lock in the child
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            for number, copy in kept.items():
                os.dup2(copy, number)
            for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
                with contextlib.suppress(OSError):
                    os.close(number)
            sys.argv[1:] = command[3:]
            writer_main.main()
        for copy in kept.values():
            os.close(copy)

    def poll(self) -> int | None:
        return self.returncode


def train_forever(folder: str, ready: str, incremental: bool, writer: str = "thread") -> None:
    """Continue from the newest step and save every step, until killed.

    The file ``ready`` has the number of the last step that is known to be visible; if a process writes, of the last
    one that was saved.
    """
    torch.set_num_threads(1)
    saver._WORTH_AN_EARLY_START = 1
    process.subprocess = types.SimpleNamespace(**{**vars(process.subprocess), "Popen": ForkedWriter})
    state = trainings.with_history(trainings.make())
    ahead = 0 if writer == "process" else 1
    with Checkpointer(folder, keep=2, incremental=incremental, writer=writer) as checkpointer:
        checkpointer.restore(into=state)
        with open(ready, "w", buffering=1) as visible:
            while True:
                trainings.train(state)
                checkpointer.save(state["step"], state)
                visible.write(f"{state['step'] - ahead}\n")  # a save begins when the one before is visible


def hold(folder: str, ready: str, child: bool) -> None:
    """Hold the folder's lock until killed; with ``child``, fork a child meanwhile that keeps running."""
    with Checkpointer(folder) as checkpointer:
        checkpointer.save(1, {"tensor": torch.ones(3)})
        pid = os.fork() if child else 1
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        checkpointer.wait()
        with open(ready + ".new", "w") as file:
            file.write(str(pid))
        os.rename(ready + ".new", ready)
        time.sleep(60)


def sweep(folder: str, policy: str, call: str, effect: int) -> list[Json]:
    """Repeat the save of step 1 beside step 0: a fault strikes the first call of its class, then the second, ...

    Each result has the error, the existing steps, whether they are complete, and the leftovers after one more save.
    """
    programs._warm_up(policy)
    results: list[Json] = []
    for first in range(1, 100):
        path = os.path.join(folder, str(first))
        with Checkpointer(path, policy=policy) as checkpointer:
            checkpointer.save(0, _state(0))
            checkpointer.wait()
            _fill(path, checkpointer, {"call": call, "effect": effect, "first": first, "times": 1}, results)
        if results[-1]["strikes"] == 0:
            return results[:-1]
    raise AssertionError(f"more than 100 calls of class {call}")


def restores(folder: str, policy: str, call: str, effect: int) -> list[Json]:
    """Repeat a restore from two steps: the newer one's calls of a class fail from the first on, then the second, ...

    Each result has the error or the restored step, and the warnings.
    """
    programs._warm_up(policy)
    results: list[Json] = []
    with Checkpointer(folder, policy=policy) as checkpointer:
        for step in (0, 1):
            checkpointer.save(step, _state(step))
        checkpointer.wait()
        for first in range(1, 100):
            restored: list[Any] = []
            fault = {"call": call, "effect": effect, "first": first, "times": 1000}
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                within = os.path.join(folder, f"step-{1:010d}", "any")
                result = programs._attempt(lambda to=restored: to.append(checkpointer.restore()), within, [fault])
            if result["strikes"] == 0:
                return results
            result["steps"] = [one.step for one in restored]
            result["warned"] = [str(one.message) for one in warned]
            results.append(result)
    raise AssertionError(f"more than 100 calls of class {call}")


def _fill(path: str, checkpointer: Checkpointer, fault: Json, results: list[Json]) -> None:
    def save() -> None:
        checkpointer.save(1, _state(1))
        checkpointer.wait()

    result = programs._attempt(save, os.path.join(path, "step"), [fault])
    result["steps"] = checkpointer.steps()
    result["whole"] = [_is_whole(checkpointer, step) for step in result["steps"]]
    result["newest"] = checkpointer.latest()
    checkpointer.save(2, _state(2))
    checkpointer.wait()
    result["next"] = _is_whole(checkpointer, 2)
    expected = {f"step-{step:010d}" for step in checkpointer.steps()}
    found = {name: sorted(os.listdir(os.path.join(path, name))) for name in os.listdir(path) if name != ".lock"}
    result["left"] = [
        f"{name}: {files}"
        for name, files in found.items()
        if name not in expected or files != ["manifest.json", "state.pt"]
    ]
    results.append(result)


def _state(step: int) -> Json:
    return {"large": torch.full((300_000,), float(step)), "step": step}


def _is_whole(checkpointer: Checkpointer, step: int) -> bool:
    checkpointer.verify(step)
    restored = checkpointer.restore(step)
    return restored is not None and restored.state["step"] == step and bool((restored.state["large"] == step).all())
