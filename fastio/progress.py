"""What ``progress=`` may be: nothing, a function, or True for a bar."""

from __future__ import annotations

from typing import Any

from fastio.errors import ToolUnavailableError
from fastio.job import Progress


def as_callback(progress: Any, label: str) -> Progress | None:
    """A function of (bytes done, bytes in all); None for no progress. TypeError for what is neither."""
    if progress is None or progress is False:
        return None
    if progress is True:
        return _bar(label)
    if callable(progress):
        function: Progress = progress
        return function
    raise TypeError(f"progress={progress!r}: expected None, True or a function of (bytes done, bytes in all)")


def tell_end(progress: Progress | None, nbytes: int) -> None:
    """For work that cannot be watched: all of its bytes are done."""
    if progress is not None:
        progress(nbytes, nbytes)


def _bar(label: str) -> Progress:
    try:
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        raise ToolUnavailableError("progress", "the bar needs rich", "pip install 'fastio[bench]'") from None
    bar = Bar("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    task = bar.add_task(label)

    def show(done: int, total: int) -> None:
        if not bar.live.is_started:
            bar.start()
        bar.update(task, completed=done, total=total)
        if done >= total:
            bar.stop()

    return show
