"""Shows progress with the time left: a bar in a terminal, one line a minute in a log."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column

from fastio_bench.harness.interrupts import check

_TIMES = 22  # columns that the time passed and the time left take
_LINE_SECONDS = 60.0


class Meter:
    """Progress with the time left. Each step has a weight: saving 1.3 GB takes longer than saving 3 MB."""

    def __init__(self, console: Console, steps: Sequence[float], clock: Callable[[], float] = time.monotonic) -> None:
        room = console.width - _TIMES
        self._progress = Progress(
            TextColumn("{task.description}", table_column=Column(overflow="fold")),  # in a narrow terminal it wraps
            *([BarColumn(min(40, room // 3))] if room > _TIMES else []),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            speed_estimate_period=120,
            transient=True,
            get_time=clock,
        )
        self._task = self._progress.add_task("starting", total=sum(steps))
        self._clock = clock
        self._said = clock()

    def __enter__(self) -> Meter:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def tell(self, what: str, weight: float) -> None:
        """Show what is being done, and count a step of that weight as done (0: it only begins)."""
        check()
        self._progress.update(self._task, description=what, advance=weight)
        if not self._progress.console.is_terminal and self._clock() - self._said >= _LINE_SECONDS:
            self._said = self._clock()
            self._say()

    def _say(self) -> None:
        (task,) = self._progress.tasks
        passed, left = (None if s is None else timedelta(seconds=round(s)) for s in (task.elapsed, task.time_remaining))
        line = f"{passed} {task.description}" + (f", {left} left" if left else "")
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
