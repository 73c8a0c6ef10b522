"""A pool of processes connected by gloo, shared by many tests because starting one costs seconds.

A task is a function of a module that the processes can import (:mod:`rank_tasks`). All ranks run it at the same time;
each returns its result, or the text of its exception.
"""

from __future__ import annotations

import datetime
import faulthandler
import multiprocessing
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

WORLD = 4  # ranks of the pool that the tests of a module share
_ANSWER_SECONDS = 600


def forks() -> Any:
    """A forkserver context: the server imports the slow modules once, and forks the processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fastio.distributed", "torch.distributed.fsdp", "torch.distributed.tensor"])
    return context


class RankError(Exception):
    """A task failed in a process of the pool."""


class Ranks:
    """A pool of ``world`` processes; use as a context. gloo waits ``timeout`` seconds for a silent rank."""

    def __init__(self, world: int, folder: Path, timeout: float = 600, environment: list[dict[str, str]] | None = None):
        context = forks()
        self._pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            own = environment[rank] if environment else {}
            arguments = (rank, world, str(folder / "rendezvous"), timeout, own, theirs)
            process = context.Process(target=_serve, args=arguments)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe, process in zip(self._pipes, self.processes, strict=True):
            if process.is_alive():
                pipe.send(None)
            pipe.close()
        for process in self.processes:
            process.join(30)
            if process.is_alive():
                process.kill()
                process.join()

    def run(self, task: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Run ``task(*arguments)`` on each rank; returns the results. Raises RankError if one fails."""
        answers = self.answers(task, *arguments)
        failures = [f"rank {rank}: {value}" for rank, (good, value) in enumerate(answers) if not good]
        if failures:
            raise RankError("\n".join(failures))
        return [value for _, value in answers]

    def answers(self, task: Callable[..., Any], *arguments: Any) -> list[tuple[bool, Any]]:
        """Run a task; returns for each rank whether it succeeded, and its result or the text of its failure."""
        for pipe in self._pipes:
            pipe.send((task, arguments))
        return [self._answer(rank) for rank in range(len(self._pipes))]

    def _answer(self, rank: int) -> tuple[bool, Any]:
        if not self._pipes[rank].poll(_ANSWER_SECONDS):
            return False, "no answer"
        try:
            answer: tuple[bool, Any] = self._pipes[rank].recv()
        except EOFError:
            self.processes[rank].join()
            return False, f"ended with {self.processes[rank].exitcode}"
        return answer


def _serve(rank: int, world: int, rendezvous: str, timeout: float, environment: dict[str, str], pipe: Any) -> None:
    faulthandler.enable()  # a rank that crashes says where
    os.environ.update(environment, MASTER_ADDR="localhost", LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout),
    )
    while True:
        message = pipe.recv()
        if message is None:
            break
        task, arguments = message
        try:
            pipe.send((True, task(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    dist.destroy_process_group()
