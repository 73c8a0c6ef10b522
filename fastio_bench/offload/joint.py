"""Keep, move or recompute under a memory limit: one planner beside moving alone and recomputing alone.

The network trains in one thread on the CPU. The disk is modelled: moving everything takes ``CHANNEL`` times the
forward pass. Times are those of :class:`ModelledClock`, so other work on the machine hardly changes them.
"""

from __future__ import annotations

import ctypes
import gc
import math
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
from fastio.offload.planning.optimal import optimal
from fastio.offload.planning.profile import Profile
from fastio.offload.recompute.operator_policy import PlannedPolicy
from fastio_bench.harness.timing import Peak
from fastio_bench.harness.torch_threads import torch_threads
from fastio_bench.offload.modelled_disk import ModelledClock, ModelledDisk
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
_OVER = 1.1  # times the joint planner's memory that another way may take and count as one with the same limit
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of mallopt(3)

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Way:
    """The median seconds of a step, the bytes it moved out and recomputed, and those its saved tensors took at most.

    ``exact``: the gradients have plain's bits. ``memory``: None if the system does not tell it. The memory of a step
    less that which plain training takes beside its saved tensors.
    """

    way: str
    step_s: float
    moved: int
    recomputed: int
    memory: int | None
    keeps_limit: bool
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
    clock = ModelledClock()
    with clock.everywhere(), torch_threads(1):
        return _measure(size, rounds, clock)


def _measure(size: Size, rounds: int, clock: ModelledClock) -> list[Way]:
    _set_malloc(1 << 16, 0)
    training = make(size.architecture, size.batch, size.depth, size.width)
    expected = _step(training, nullcontext, clock)[1]
    nbytes = _saved_bytes(training)
    with ExitStack() as stack:
        ways, _ = _prepared(training, nbytes, clock, stack)
        peaks = {way: _peak(training, around, way == CHECKPOINT) for way, around in ways.items()}
    _set_malloc(32 << 20, 64 << 20)
    with ExitStack() as stack:
        ways, managers = _prepared(training, nbytes, clock, stack)
        taken: dict[str, list[float]] = {way: [] for way in ways}
        exact = dict.fromkeys(ways, True)
        before = {way: _counts(manager) for way, manager in managers.items()}
        for _ in range(rounds):
            for way, around in ways.items():
                seconds, gradients = _step(training, around, clock, way == CHECKPOINT)
                taken[way].append(seconds)
                exact[way] &= all(map(torch.equal, gradients, expected))
        after = {way: _counts(manager) for way, manager in managers.items()}
    plain, none = peaks[PLAIN], (0, 0)
    memory = {way: None if plain is None or peak is None else peak - plain + nbytes for way, peak in peaks.items()}
    limit = memory[JOINT]
    return [
        Way(
            way,
            median(taken[way]),
            (after.get(way, none)[0] - before.get(way, none)[0]) // rounds,
            (after.get(way, none)[1] - before.get(way, none)[1]) // rounds,
            took := memory[way],
            took is None or limit is None or took <= _OVER * limit,
            exact[way],
        )
        for way in (PLAIN, JOINT, MOVING, RECOMPUTING, CHECKPOINT)
    ]


def _prepared(
    training: Training, nbytes: int, clock: ModelledClock, stack: ExitStack
) -> tuple[dict[str, Around], dict[str, fastio.Offload]]:
    """Return each way after its plan was made, and the managers of those that have one."""
    for checkpointed in (False, True):  # the first step of each imports parts of torch, which take memory
        _step(training, nullcontext, clock, checkpointed)
    bandwidth = nbytes / (CHANNEL * min(_forward(training, clock) for _ in range(_WARM_UP)))
    budget = int(nbytes * LIMIT)

    def offload(policy: Any) -> fastio.Offload:
        disk = ModelledDisk(bandwidth, clock)
        made = fastio.Offload(store=disk, policy=policy, budget=budget, codec="none")
        stack.callback(made.close)
        return made

    managers = {JOINT: offload("optimal"), MOVING: offload(optimal)}
    ways: dict[str, Around] = {PLAIN: nullcontext, CHECKPOINT: nullcontext}
    for way, manager in managers.items():
        ways[way] = partial(_itself, manager)
        for _ in range(_WARM_UP):
            _step(training, ways[way], clock)
    profile = managers[JOINT]._planner.latest
    assert profile is not None, "it was profiled"
    alone = RecomputingAlone(profile, budget)
    managers[RECOMPUTING] = offload(alone)
    ways[RECOMPUTING] = lambda: _both(alone, managers[RECOMPUTING])
    return ways, managers


def ratio(found: list[Way]) -> float | None:
    """Return the joint planner's step over that of the best other way in the limit; None if no other way keeps it."""
    by_way = {one.way: one for one in found}
    alone = [by_way[way].step_s for way in (MOVING, RECOMPUTING, CHECKPOINT) if by_way[way].keeps_limit]
    return by_way[JOINT].step_s / min(alone) if alone else None


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
            None if one.memory is None else one.memory / 2**20,
            "yes" if one.keeps_limit else "no",
            "yes" if one.exact else "no",
        ]
        for one in found
    ]
    over = ratio(found)
    note = (
        f"{size}, on the CPU, in one thread. All but plain training and torch checkpoint (every block) have the same "
        f"budget for saved tensors, {LIMIT:.0%} of their bytes. Memory: the most that a step took, less what plain "
        f"training takes beside its saved tensors. In the limit: at most {_OVER - 1:.0%} more of it than the joint "
        f"planner takes. A modelled disk: moving everything takes {CHANNEL} times the forward pass. Times: "
        f"processor time of the thread that trains, and its modelled waits. Joint over the best of the others that "
        f"keep the limit: {'none does' if over is None else f'{over:.2f}'}."
    )
    columns = (
        "way",
        "step s*",
        "x plain*",
        "moved MiB*",
        "recomputed MiB*",
        "memory MiB*",
        "keeps the limit",
        "plain's bits",
    )
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


def _step(
    training: Training, around: Around, clock: ModelledClock, checkpointed: bool = False
) -> tuple[float, list[torch.Tensor]]:
    """Return the seconds of forward and backward, and the gradients."""
    began = clock.now()
    _train(training, around, checkpointed)
    seconds = clock.now() - began
    gradients = [one.grad for one in training.model.parameters() if one.grad is not None]
    for parameter in training.model.parameters():
        parameter.grad = None
    return seconds, gradients


def _train(training: Training, around: Around, checkpointed: bool) -> None:
    with around():
        loss = _checkpointed(training) if checkpointed else training.loss()
    loss.backward()


def _set_malloc(mapped: int, kept: int) -> None:
    """Have allocations from ``mapped`` bytes on go back to the system when they are freed, and smaller ones beyond
    ``kept`` bytes."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, mapped)
    libc.mallopt(_TRIM_THRESHOLD, kept)


def _peak(training: Training, around: Around, checkpointed: bool) -> int | None:
    """Return the bytes of memory that a step takes at most, beside parameters and gradients."""
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    gc.collect()
    peak = Peak()
    _train(training, around, checkpointed)
    taken = peak.beyond(0)
    for parameter in training.model.parameters():
        parameter.grad = None
    return taken


def _checkpointed(training: Training) -> torch.Tensor:
    x = training.inputs
    for layer in training.model.children():
        x = checkpoint(layer, x, use_reentrant=False)
    return torch.nn.functional.cross_entropy(x.flatten(0, -2), training.targets.flatten())


def _forward(training: Training, clock: ModelledClock) -> float:
    began = clock.now()
    training.loss()
    return clock.now() - began


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
