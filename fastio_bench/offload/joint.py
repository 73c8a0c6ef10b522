"""Keep, move or recompute under a memory limit: one planner beside moving alone and recomputing alone.

The network trains on the CPU. The disk is modelled: moving everything takes ``CHANNEL`` times the forward pass.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint

import fastio
from fastio.offload.planning.joint import joint
from fastio.offload.planning.profile import Profile
from fastio.offload.recompute.checkpoint_policy import PlannedPolicy
from fastio_bench.offload.modelled_disk import ModelledDisk
from fastio_bench.report.table import ResultTable
from fastio_bench.workloads.training_models import Size, Training, make

PLAIN, JOINT, MOVING, RECOMPUTING, CHECKPOINT = (
    "plain",
    "joint",
    "moving alone",
    "recomputing alone",
    "torch checkpoint",
)
CHANNEL = 2.5  # seconds to move everything out, over those of the forward pass
LIMIT = 0.25  # of the bytes that are saved
GOAL = 0.90
SIZE, QUICK = Size("transformer", 8, 6, 256), Size("transformer", 2, 2, 64)
_WARM_UP = 4  # steps: one is profiled, two planned
_SMALLEST = 4096  # bytes: smaller tensors stay

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Way:
    """The median seconds of a step, and the bytes that one step moved out and recomputed. ``exact``: plain's bits."""

    way: str
    step_s: float
    moved: int
    recomputed: int
    exact: bool


class RecomputingAlone:
    """A policy of operators that repeats in each pass what the joint planner chose when nothing could move."""

    def __init__(self, profile: Profile, budget: int) -> None:
        never = [replace(one, transfer_s=1e6) for one in profile.trace.activations()]
        step = replace(profile._step(profile.trace, never, 0, budget), deepest=len(never))
        need = sum(one.nbytes for one in never) - budget
        choice = joint(step, need)
        if choice.moved or choice.seconds == math.inf:  # it takes more memory in between
            choice = joint(replace(step, memory=math.inf), need)
        if choice.moved:
            raise RuntimeError(f"a budget of {budget} bytes cannot be kept by recomputing alone")
        self._profile = replace(profile, selected=(), recomputed=choice.recomputed)
        self._policy = PlannedPolicy(self._profile)

    def __enter__(self) -> None:
        self._policy = PlannedPolicy(self._profile)

    def __exit__(self, *_: object) -> None:
        pass

    def __call__(self, context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        """Return the verdict on an operator."""
        return self._policy(context, operator, *args, **kwargs)


def measure(size: Size, rounds: int) -> list[Way]:
    """Train ``rounds`` interleaved steps by each way."""
    training = make(size.architecture, size.batch, size.depth, size.width)
    expected = _step(training, nullcontext)[1]
    forward_s = min(_forward(training) for _ in range(3))
    nbytes = _saved_bytes(training)
    budget = int(nbytes * LIMIT)
    with ExitStack() as stack:

        def offload(policy: Any) -> fastio.Offload:
            disk = ModelledDisk(nbytes / (CHANNEL * forward_s))
            made = fastio.Offload(store=disk, policy=policy, budget=budget, codec="none")
            stack.callback(made.close)
            return made

        managers = {JOINT: offload("joint"), MOVING: offload("optimal")}
        ways: dict[str, Around] = {PLAIN: nullcontext, CHECKPOINT: nullcontext}
        for way, manager in managers.items():
            ways[way] = partial(_itself, manager)
            for _ in range(_WARM_UP):
                _step(training, ways[way])
        profile = managers[JOINT]._planner.latest
        assert profile is not None, "it was profiled"
        alone = RecomputingAlone(profile, budget)
        managers[RECOMPUTING] = offload(alone)
        ways[RECOMPUTING] = lambda: _both(alone, managers[RECOMPUTING])
        taken: dict[str, list[float]] = {way: [] for way in ways}
        exact = dict.fromkeys(ways, True)
        before = {way: _counts(manager) for way, manager in managers.items()}
        for _ in range(rounds):
            for way, around in ways.items():
                seconds, gradients = _step(training, around, way == CHECKPOINT)
                taken[way].append(seconds)
                exact[way] &= all(map(torch.equal, gradients, expected))
        after = {way: _counts(manager) for way, manager in managers.items()}
    none = (0, 0)
    return [
        Way(
            way,
            median(taken[way]),
            (after.get(way, none)[0] - before.get(way, none)[0]) // rounds,
            (after.get(way, none)[1] - before.get(way, none)[1]) // rounds,
            exact[way],
        )
        for way in (PLAIN, JOINT, MOVING, RECOMPUTING, CHECKPOINT)
    ]


def ratio(found: list[Way]) -> float:
    """Return the joint planner's step over the better of moving alone and recomputing alone."""
    seconds = {one.way: one.step_s for one in found}
    return seconds[JOINT] / min(seconds[MOVING], seconds[RECOMPUTING], seconds[CHECKPOINT])


def table(found: list[Way], size: Size) -> ResultTable:
    """A row for each way."""
    plain = next(one.step_s for one in found if one.way == PLAIN)
    rows = [
        [
            one.way,
            one.step_s,
            one.step_s / plain,
            one.moved / 2**20,
            one.recomputed / 2**20,
            "yes" if one.exact else "no",
        ]
        for one in found
    ]
    note = (
        f"{size}, on the CPU. Memory for saved tensors: {LIMIT:.0%} of them; for plain all, and for torch checkpoint "
        f"what it takes with every block checkpointed. A modelled disk: moving everything takes {CHANNEL} times the "
        f"forward pass. Joint over the better of moving alone and recomputing alone: {ratio(found):.2f}."
    )
    columns = ("way", "step s*", "x plain*", "moved MiB*", "recomputed MiB*", "plain's bits")
    return ResultTable("joint", "Keep, move or recompute", columns, rows, note=note)


def _itself(manager: fastio.Offload) -> fastio.Offload:
    return manager


def _both(first: AbstractContextManager[Any], second: AbstractContextManager[Any]) -> ExitStack:
    stack = ExitStack()
    stack.enter_context(first)
    stack.enter_context(second)
    return stack


def _counts(manager: fastio.Offload) -> tuple[int, int]:
    return sum(one.written_bytes for one in manager.counts.traffic.values()), manager.counts.recomputed_bytes


def _step(training: Training, around: Around, checkpointed: bool = False) -> tuple[float, list[torch.Tensor]]:
    """Return the seconds of forward and backward, and the gradients."""
    began = time.perf_counter()
    with around():
        loss = _checkpointed(training) if checkpointed else training.loss()
    loss.backward()
    seconds = time.perf_counter() - began
    gradients = [one.grad for one in training.model.parameters() if one.grad is not None]
    for parameter in training.model.parameters():
        parameter.grad = None
    return seconds, gradients


def _checkpointed(training: Training) -> torch.Tensor:
    x = training.inputs
    for layer in training.model.children():
        x = checkpoint(layer, x, use_reentrant=False)
    return torch.nn.functional.cross_entropy(x.flatten(0, -2), training.targets.flatten())


def _forward(training: Training) -> float:
    began = time.perf_counter()
    training.loss()
    return time.perf_counter() - began


def _saved_bytes(training: Training) -> int:
    """Return the bytes of the storages that autograd saves, without parameters and small ones."""
    parameters = {one.untyped_storage().data_ptr() for one in training.model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters and storage.nbytes() >= _SMALLEST:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = training.loss()
    nbytes = sum(sizes.values())
    del loss
    return nbytes
