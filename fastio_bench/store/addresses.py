"""FlashNeuron's figure 11: the block addresses that an iteration of training writes and reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from fastio import Offload
from fastio.offload.stores.block_store import BLOCK, BlockStore, Direction
from fastio_bench.report.table import ResultTable
from fastio_bench.workloads import training_models

_NETWORK = ("transformer", 4, 4, 128)  # architecture, batch, depth, width

Command = tuple[Direction, int, int, int]


@dataclass(frozen=True)
class Pattern:
    """The commands of one direction, their bytes, and the share that follows the paper's order.

    A run is a series of commands of which each begins where the one before ended. In the paper's order, all writes are
    one run, and each run that is read begins below the one before.
    """

    direction: Direction
    commands: int
    nbytes: int
    in_order: float


def record(folder: Path) -> list[Pattern]:
    """Train one iteration with every activation moved to a block store in ``folder``; the one before allocates."""
    training = training_models.make(*_NETWORK)
    with BlockStore(folder) as store:
        offload = Offload(training.model, store=store, policy="all", budget=0, codec="none")
        for recording in (False, True):
            store.recording = recording
            with offload:
                training.loss().backward()
        trace = store.trace
        offload.close()
    return [_pattern("write", trace), _pattern("read", trace)]


def _pattern(direction: Direction, trace: Sequence[Command]) -> Pattern:
    commands = [(lba, blocks) for own, _, lba, blocks in trace if own == direction]
    runs = runs_of(commands)
    if direction == "write":
        in_order = 1 - (len(runs) - 1) / max(1, len(commands) - 1)
    else:
        in_order = sum(later < before for before, later in pairwise(runs)) / max(1, len(runs) - 1)
    return Pattern(direction, len(commands), BLOCK * sum(blocks for _, blocks in commands), in_order)


def runs_of(commands: Sequence[tuple[int, int]]) -> list[int]:
    """The first block of each run of (first block, blocks)."""
    ends = [-1, *(lba + blocks for lba, blocks in commands)]
    return [lba for (lba, _), end in zip(commands, ends, strict=False) if lba != end]


def table(found: Sequence[Pattern]) -> ResultTable:
    """A row for each direction."""
    return ResultTable(
        "addresses",
        "Block addresses of an iteration of training, a small transformer",
        ("direction", "commands*", "MB*", "in order %*"),
        [[one.direction, one.commands, one.nbytes / 1e6, 100 * one.in_order] for one in found],
        note="in order: a write begins where the one before ended; an activation read lies below the one before",
    )
