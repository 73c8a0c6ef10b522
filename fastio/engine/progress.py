"""What ``progress=`` may be: nothing, a function, or True for a bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fastio.engine.background_job import Progress
from fastio.errors import ToolUnavailableError


def check_progress(progress: Any) -> None:
    """TypeError for what is no progress, ToolUnavailableError for a bar where there is none."""
    if progress is True:
        _bar()
    elif progress is not None and progress is not False and not callable(progress):
        raise TypeError(f"progress={progress!r}: expected None, True or a function of (bytes done, bytes in all)")


def shown(progress: Any, label: str) -> contextlib.AbstractContextManager[Progress | None]:
    """For one transfer, a function of (bytes done, bytes in all); None for no progress. A bar ends with the context.

    Raises what :func:`check_progress` raises.
    """
    if progress is True:
        return _shown_bar(label)
    check_progress(progress)
    return contextlib.nullcontext(None if progress is False else progress)


def tell_end(progress: Progress | None, nbytes: int) -> None:
    """For work that cannot be watched: all of its bytes are done."""
    if progress is not None:
        progress(nbytes, nbytes)


@contextlib.contextmanager
def _shown_bar(label: str) -> Iterator[Progress]:
    bar = _bar()
    from rich.errors import LiveError

    task = bar.add_task(label)

    def show(done: int, total: int) -> None:
        with contextlib.suppress(LiveError):  # another transfer's is there: one at a time, with some versions of rich
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:  # else it would end the line that it never began, where there is no terminal
            bar.stop()


def _bar() -> Any:
    try:
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        raise ToolUnavailableError("progress", "the bar needs rich", "pip install 'fastio[bench]'") from None
    return Bar("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
