"""Times tools in interleaved rounds (A B C, A B C, ...), so that drift of the machine affects all of them equally.

The clock is an argument, so the tests use a fake one.
"""

from __future__ import annotations

import gc
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from fastio_bench.machine import host

T = TypeVar("T")


class Clock(Protocol):
    """Wall seconds, CPU seconds (user and system, all threads) and the bytes that the host took back so far."""

    def wall(self) -> float: ...

    def cpu(self) -> float: ...

    def taken_back(self) -> int: ...


class SystemClock:
    """This process's clocks; CPU seconds include those of children that have been waited for."""

    def wall(self) -> float:
        return time.perf_counter()

    def cpu(self) -> float:
        usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    def taken_back(self) -> int:
        return host.taken_back()


@dataclass(frozen=True, slots=True)
class Measured:
    """The cost of one timed call. ``extra_bytes`` is the peak of memory beyond the object itself, where measured.

    ``way`` names the tool and the route of the bytes, if the tool reports them. ``gpu_busy`` is the share of the time
    in which the GPU was busy, 0 to 1, if there is one. ``taken_back``: bytes of free memory that the host took during
    the call (:mod:`fastio_bench.machine.host`).
    """

    seconds: float
    cpu_seconds: float
    extra_bytes: int | None = None
    way: str = ""
    gpu_busy: float | None = None
    taken_back: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One timed call of ``tool`` at ``work`` (durable save, cold load, ...) on ``workload``, in round ``round``.

    ``again``: how many timings before it were discarded because the host took memory.
    """

    work: str
    workload: str
    tool: str
    round: int
    nbytes: int
    seconds: float
    cpu_seconds: float
    extra_bytes: int | None = None
    way: str = ""
    gpu_busy: float | None = None
    taken_back: int = 0
    again: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """A tool that failed at a work, and the reason. It is reported and left out of later rounds.

    ``refused``: it was never tried, because it is not installed or does not support the work.
    """

    work: str
    workload: str
    tool: str
    round: int
    reason: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """The work of all contestants in one comparison: ``work`` on ``workload``, ``nbytes`` bytes."""

    work: str
    workload: str
    nbytes: int


def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class Contestant:
    """One tool at one task.

    ``run`` is timed and returns the way of its bytes, or ""; or it returns a :class:`Measured` (a fresh process times
    itself). ``prepare`` and ``finish`` run before and after each timed call, untimed.
    """

    tool: str
    run: Callable[[], Measured | str]
    prepare: Callable[[], object] = _nothing
    finish: Callable[[], object] = _nothing


def interleave(
    task: Task,
    contestants: Sequence[Contestant],
    rounds: int,
    clock: Clock | None = None,
    another: Callable[[int], bool] = lambda done: True,
) -> Iterator[Sample | Failure]:
    """Run every contestant once a round, and yield each outcome as soon as it is known.

    A call that the host disturbed is timed again: see :func:`undisturbed`. After each round ``another``, called with
    the number of finished rounds, decides whether there is time for one more.
    """
    clock = clock or SystemClock()
    failed: set[str] = set()
    usual: dict[str, float] = {}
    for number in range(rounds):
        if number and not another(number):
            return
        for contestant in contestants:
            if contestant.tool in failed:
                continue
            try:
                known = usual.get(contestant.tool, 0.0)
                measured, again = undisturbed(partial(_time, contestant, clock), task.nbytes, known)
            except Exception as error:  # any error of a tool is a result, not the end of the run
                failed.add(contestant.tool)
                yield Failure(task.work, task.workload, contestant.tool, number, describe(error))
                continue
            if not measured.taken_back:
                usual[contestant.tool] = min(measured.seconds, usual.get(contestant.tool, measured.seconds))
            yield Sample(
                task.work,
                task.workload,
                contestant.tool,
                number,
                task.nbytes,
                measured.seconds,
                measured.cpu_seconds,
                measured.extra_bytes,
                measured.way,
                measured.gpu_busy,
                measured.taken_back,
                again,
            )


def undisturbed(call: Callable[[], Measured], nbytes: int, usual: float = 0.0) -> tuple[Measured, int]:
    """Time a call that moves ``nbytes``, and repeat it at most twice if the host disturbed it.

    Returns the cost and the number of discarded timings. ``usual`` is as in
    :func:`fastio_bench.machine.host.disturbed`.
    """
    measured, again = call(), 0
    while again < host.MOST_AGAIN and host.disturbed(nbytes, measured.seconds, measured.taken_back, usual):
        measured, again = call(), again + 1
    return measured, again


def clocked(call: Callable[[], T], clock: Clock) -> tuple[T, Measured]:
    """Run the call. Returns its result and its cost."""
    taken, cpu, wall = clock.taken_back(), clock.cpu(), clock.wall()
    result = call()
    wall, cpu, taken = clock.wall() - wall, clock.cpu() - cpu, clock.taken_back() - taken
    return result, Measured(wall, cpu, taken_back=taken)


def _time(contestant: Contestant, clock: Clock) -> Measured:
    try:
        gc.collect()
        contestant.prepare()
        result, took = clocked(contestant.run, clock)
    finally:
        contestant.finish()
    return result if isinstance(result, Measured) else replace(took, way=result)


def describe(error: BaseException) -> str:
    """The error as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
