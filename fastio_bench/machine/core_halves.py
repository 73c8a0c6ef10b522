"""Divides the cores between what is measured and what disturbs it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from fastio_bench.harness.torch_threads import torch_threads


def halves() -> tuple[list[int], list[int]]:
    """The cores of this process in two halves: one for what is measured, one for what disturbs it.

    An odd one is in the first half. Of a single core both are that core.
    """
    cores = sorted(os.sched_getaffinity(0))
    middle = (len(cores) + 1) // 2
    return cores[:middle], cores[middle:] or cores


@contextmanager
def bound(cores: Sequence[int]) -> Iterator[None]:
    """Bind all threads of this process, and what they start from now on, to cores; torch computes with one on each."""
    before = os.sched_getaffinity(0)
    _bind(cores)
    try:
        with torch_threads(len(cores)):
            yield
    finally:
        _bind(before)


def _bind(cores: Sequence[int] | set[int]) -> None:
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # the thread has ended
            os.sched_setaffinity(int(task.name), cores)
