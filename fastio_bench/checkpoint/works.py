"""What ``fastio-bench checkpoint`` measures, and who takes part, by name."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKED, DURABLE = "training blocked by an asynchronous save", "durable save"
RANKS_SAVE, RANKS_LOAD = "durable save, 2 ranks", "cold load, 2 ranks"
RESTORE = "cold restore into a live model"
INCREMENTAL = "durable save, a tenth changed"
WORKS = (BLOCKED, DURABLE, RANKS_SAVE, RANKS_LOAD, RESTORE, INCREMENTAL)

FASTIO, TORCH, MAPPED = "fastio", "torch", "torch, mapped"
BUDGETED = "fastio, an eighth of the memory"
DCP, DCP_CACHED = "DCP", "DCP, cached staging"
COPY, FULL = "plain copy", "fastio, full"
SAVERS = (TORCH, FASTIO, DCP, DCP_CACHED, BUDGETED)
RESTORERS = (TORCH, MAPPED, FASTIO)
RANKS_TOOLS = (DCP, FASTIO)
BASELINES = {
    BLOCKED: COPY,
    DURABLE: TORCH,
    RANKS_SAVE: DCP,
    RANKS_LOAD: DCP,
    RESTORE: TORCH,
    INCREMENTAL: FULL,
}

OF_FASTIO, OF_TORCH = "of-fastio", "of-torch.pt"  # what is restored
SHARE = 0.1  # of the storages that change before an incremental save
BUDGET_PART = 8  # the memory budget is an eighth of the state
WORLD = 2


def works_of(tool: str) -> tuple[str, ...]:
    """What a saver is timed at: torch.save is not asynchronous, so how long it blocks is how long it takes."""
    return (DURABLE,) if tool == TORCH else (BLOCKED, DURABLE)


@dataclass(frozen=True, slots=True)
class Job:
    """What one fresh process does: ``task`` with the network of ``depth`` and ``width``, files below ``folder``.

    A task is the rest of a module's name after ``checkpoint_``, a dot, and a function of it.

    ``saves`` is how often it saves (and, for ranks, loads), after a first time that does not count.
    """

    task: str
    folder: str
    depth: int
    width: int
    tool: str = ""
    saves: int = 0
    rank: int = 0
