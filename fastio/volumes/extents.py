"""Which blocks of a volume are free, and which of them a new object gets. Pure; all numbers are blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Run(NamedTuple):
    """``blocks`` blocks from ``first`` on."""

    first: int
    blocks: int

    @property
    def end(self) -> int:
        """The block behind the last."""
        return self.first + self.blocks


def free_runs(used: Iterable[Run], begin: int, end: int) -> list[Run]:
    """What is free of the blocks ``[begin, end)``, in order. ValueError if runs overlap, or lie outside."""
    free: list[Run] = []
    at = begin
    for run in sorted(used):
        if run.first < at or run.blocks < 1 or run.end > end:
            raise ValueError(f"blocks {run.first} to {run.end} overlap others, or lie outside {begin} to {end}")
        if run.first > at:
            free.append(Run(at, run.first - at))
        at = run.end
    if at < end:
        free.append(Run(at, end - at))
    return free


def allocate(free: Sequence[Run], blocks: int, after: int, most_runs: int) -> tuple[Run, ...] | None:
    """Blocks for an object, of the ``free`` ones (sorted): the first run that is long enough, from ``after`` on.

    Behind the end, the search goes on at the beginning. Where no run is long enough, the longest ones together. None if
    there are too few blocks, or if they are in more than ``most_runs`` runs.
    """
    if not blocks:
        return ()
    behind = [Run(max(run.first, after), run.end - max(run.first, after)) for run in free if run.end > after]
    fitting = next((run for run in (*behind, *free) if run.blocks >= blocks), None)
    if fitting is not None:
        return (Run(fitting.first, blocks),)
    taken: list[Run] = []
    for run in sorted(free, key=lambda run: -run.blocks)[:most_runs]:
        taken.append(Run(run.first, min(run.blocks, blocks)))
        blocks -= taken[-1].blocks
        if not blocks:
            return tuple(sorted(taken))
    return None
