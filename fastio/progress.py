"""The argument ``progress=``: None, a function, or True for a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fastio.engine.background_job import Progress
from fastio.errors import ToolUnavailableError
from fastio.runtime.installation import pip_install


def check_progress(progress: Any) -> None:
    """TypeError for any other value, ToolUnavailableError where no progress bar is installed."""
    if progress is True:
        _bar()
    elif progress is not None and progress is not False and not callable(progress):
        raise TypeError(f"progress={progress!r}: expected None, True or a function of (bytes done, bytes in all)")


def shown(progress: Any, label: str) -> contextlib.AbstractContextManager[Progress | None]:
    """The function of (bytes done, bytes in all) for one transfer; None for no progress. A bar ends with the context.

    Raises what :func:`check_progress` raises.
    """
    if progress is True:
        return _shown_bar(label)
    check_progress(progress)
    return contextlib.nullcontext(None if progress is False else progress)


@contextlib.contextmanager
def _shown_bar(label: str) -> Iterator[Progress]:
    bar = _bar()
    from rich.errors import LiveError

    task = bar.add_task(label)

    def show(done: int, total: int) -> None:
        with contextlib.suppress(LiveError):  # another bar is shown: some versions of rich allow one
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:  # else stop() would print an empty line where there is no terminal
            bar.stop()


def _bar() -> Any:
    try:
        from rich.progress import BarColumn, DownloadColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
    except ImportError:
        raise ToolUnavailableError("progress", "the bar needs rich", pip_install(package="rich")) from None
    return Bar("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
