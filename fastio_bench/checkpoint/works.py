"""The works and tools of ``fastio-bench checkpoint``, by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

BLOCKED, DURABLE = "training blocked by an asynchronous save", "durable save"
RANKS_SAVE, RANKS_LOAD = "durable save, 2 ranks", "cold load, 2 ranks"
RANK_COUNTS = (2, 4)
BLOCKED_OF = {count: f"{BLOCKED}, {count} ranks" for count in RANK_COUNTS}
STEP_OF = {count: f"durable step, {count} ranks" for count in RANK_COUNTS}
RESHARD = "cold restore by 2 ranks of a step of 4"
RESTORE = "cold restore into a live model"
INCREMENTAL = "durable save, a tenth changed"
SLOWED = "training step while a step is written"
ROWS, COLUMNS = "consolidation of 4 ranks' rows", "consolidation of 4 ranks' columns"
WORKS = (
    *(BLOCKED, SLOWED, DURABLE, *BLOCKED_OF.values(), *STEP_OF.values(), RESHARD),
    *(RANKS_SAVE, RANKS_LOAD, RESTORE, INCREMENTAL, ROWS, COLUMNS),
)

FASTIO, TORCH, MAPPED = "fastio", "torch", "torch, mapped"
PROCESS = "fastio, by a process"
BUDGETED = "fastio, an eighth of the memory"
MANAGER = "torch_checkpointing"
DCP, DCP_CACHED, DCP_SYNCED = "DCP", "DCP, cached staging", "DCP, synced"
COPY, FULL, ALONE = "plain copy", "fastio, full", "no save"
SAVERS = (TORCH, FASTIO, PROCESS, DCP, DCP_CACHED, BUDGETED)
SLOWING = (FASTIO, PROCESS, DCP_CACHED, *((MANAGER,) if find_spec(MANAGER) else ()))
RESTORERS = (TORCH, MAPPED, FASTIO)
RANKS_TOOLS = (DCP, FASTIO)
BASELINES = {
    BLOCKED: COPY,
    SLOWED: ALONE,
    DURABLE: TORCH,
    **dict.fromkeys(BLOCKED_OF.values(), COPY),
    **dict.fromkeys(STEP_OF.values(), DCP_CACHED),
    RESHARD: DCP,
    RANKS_SAVE: DCP,
    RANKS_LOAD: DCP,
    RESTORE: TORCH,
    INCREMENTAL: FULL,
    ROWS: DCP,
    COLUMNS: DCP,
}

OF_FASTIO, OF_TORCH, OF_RANKS = "of-fastio", "of-torch.pt", "of-ranks"  # names of the files to restore
SHARE = 0.1  # the share of storages that change before an incremental save
BUDGET_PART = 8  # the memory budget is an eighth of the state
WORLD = 2


def works_of(tool: str) -> tuple[str, ...]:
    """The works of a saver. torch.save is not asynchronous, so its blocking time is its whole time."""
    return (DURABLE,) if tool == TORCH else (BLOCKED, DURABLE)


@dataclass(frozen=True, slots=True)
class Job:
    """The job of one fresh process: ``task`` with the network of ``depth`` and ``width``, files below ``folder``.

    A task is the name of a module of this package, a dot, and a function of the module.

    ``saves`` is the number of its saves (and, for ranks, loads) after a first one that does not count. It runs on the
    ``rank`` of ``world`` such processes.
    """

    task: str
    folder: str
    depth: int
    width: int
    tool: str = ""
    saves: int = 0
    rank: int = 0
    world: int = 1
