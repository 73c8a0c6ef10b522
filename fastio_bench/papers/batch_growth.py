"""Simulates the iteration as the batch grows, on the papers' machines. Nothing is measured."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio_bench.papers.capacity import iterate
from fastio_bench.papers.offload_simulated import WAYS, Machine, workload

_STEP, _MOST = 16, 1 << 12  # batches


@dataclass(frozen=True)
class Course:
    """One way of training VGG-16 on a machine: the iteration over its compute, by batch, up to the largest."""

    machine: str
    way: str
    batches: tuple[int, ...]
    slowdowns: tuple[float, ...]


def courses(machine: Machine) -> list[Course]:
    """Every way."""
    found = []
    for name, (policy, ratio) in WAYS.items():
        slowdowns: dict[int, float] = {}
        with suppress(InfeasibleBudget):
            for batch in range(_STEP, _MOST, _STEP):
                slowdowns[batch] = iterate(workload(machine, batch, ratio=ratio), machine.memory, policy).slowdown
        found.append(Course(machine.name, name, tuple(slowdowns), tuple(slowdowns.values())))
    return found
