"""Calls of ``policy="auto"`` that let the dictionaries find their paths before anything is measured."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import fastio
from fastio import dicts
from fastio.bench import cold
from fastio.bench.reserve import Reserve
from fastio.bench.workloads import Object

ROUNDS = 12
SECONDS_PER_GB = 4.0  # of one round, roughly: for the time left


def warm_up(
    thing: Object, path: Path, reserve: Reserve, rounds: int = ROUNDS, tell: Callable[[], None] = lambda: None
) -> None:
    """Save durably and not, load cold and warm, ``rounds`` times each; the dictionaries keep what they learned."""
    try:
        for _ in range(rounds):
            for durable in (True, False):
                with ready(reserve):
                    fastio.save(thing, path, durable=durable)
            for bring in (cold.drop, cold.warm):
                try:
                    bring(path)
                except cold.ResidencyError:  # on tmpfs nothing is ever cold: there is nothing to learn of that
                    continue
                with ready(reserve):
                    fastio.load(path)
            tell()
    finally:
        path.unlink(missing_ok=True)
        dicts.flush()


@contextmanager
def ready(reserve: Reserve) -> Iterator[None]:
    """Inside, the disk is idle and the reserve's memory free."""
    reserve.hold()
    os.sync()
    reserve.release()
    yield
