"""The argument ``progress=``: None, a function, or True for a bar on stderr; without a terminal, lines now and then.

What is shown never ends the work: a closed stderr, or a pipe whose reader is gone, loses what is written to it.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from fastio.engine.background_job import Progress
from fastio.errors import ToolUnavailableError
from fastio.runtime.installation import pip_install
from fastio.sizes import format_size

_FIRST_SECONDS, _MOST_SECONDS = 5.0, 60.0  # before the first line, and between two lines
_BAR_COLUMNS, _OTHER_COLUMNS = 16, 56  # of the bar alone; of the bar and the numbers beside the label


def check_progress(progress: Any) -> None:
    """TypeError for any other value, ToolUnavailableError where no progress bar is installed."""
    if progress is True:
        if _has_terminal():
            _bar()
    elif progress is not None and progress is not False and not callable(progress):
        raise TypeError(f"progress={progress!r}: expected None, True or a function of (bytes done, bytes in all)")


def shown(progress: Any, label: str) -> contextlib.AbstractContextManager[Progress | None]:
    """The function of (bytes done, bytes in all) for one transfer; None for no progress. A bar ends with the context.

    Raises what :func:`check_progress` raises.
    """
    if progress is True:
        return _shown_bar(label) if _has_terminal() else _shown_lines(label)
    check_progress(progress)
    return contextlib.nullcontext(None if progress is False else progress)


class LossyStream:
    """A text stream without errors: what cannot be written is lost. ``stream`` may be None."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            self._stream.flush()

    def isatty(self) -> bool:
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return bool(self._stream.isatty())
        return False


def _has_terminal() -> bool:
    """Whether a bar can be drawn: on a terminal, or in a notebook."""
    return LossyStream(sys.stderr).isatty() or "ipykernel" in sys.modules


@contextlib.contextmanager
def _shown_bar(label: str) -> Iterator[Progress]:
    bar = _bar()
    from rich.errors import LiveError

    room = max(bar.console.width - _OTHER_COLUMNS, 10)
    task = bar.add_task(label if len(label) <= room else f"{label[: room - 1]}…")

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
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as Bar
        from rich.table import Column
    except ImportError:
        raise ToolUnavailableError("progress", "the bar needs rich", pip_install(package="rich")) from None
    stream: Any = LossyStream(sys.stderr)
    label = TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True))
    numbers = [kind(table_column=Column(no_wrap=True)) for kind in (DownloadColumn, TransferSpeedColumn)]
    left = TimeRemainingColumn(compact=True, table_column=Column(no_wrap=True))
    return Bar(label, BarColumn(_BAR_COLUMNS), *numbers, left, console=Console(file=stream))


@contextlib.contextmanager
def _shown_lines(label: str) -> Iterator[Progress]:
    lines = _Lines(label)
    yield lines.show
    lines.end()


class _Lines:
    """Progress as lines of text: after some seconds, then ever less often, and one at the end."""

    def __init__(self, label: str) -> None:
        self._label = label
        self._stream = LossyStream(sys.stderr)
        self._began = time.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._total: int | None = None

    def show(self, done: int, total: int) -> None:
        self._total = total
        now = time.monotonic()
        if now < self._next or not 0 < done < total:
            return
        passed = now - self._began
        self._next = now + min(_MOST_SECONDS, max(_FIRST_SECONDS, passed / 2))
        left = _seconds(passed * (total - done) / done)
        of = f"{format_size(done)} of {format_size(total)} ({done / total:.0%})"
        self._print(f"{of}, {done / passed / 1e6:,.0f} MB/s, {left} left")

    def end(self) -> None:
        if self._total is not None:  # else the transfer had no progress to show
            passed = time.monotonic() - self._began
            speed = f"{self._total / max(passed, 1e-9) / 1e6:,.0f} MB/s"
            self._print(f"{format_size(self._total)} in {_seconds(passed)}, {speed}")

    def _print(self, text: str) -> None:
        self._stream.write(f"{self._label}: {text}\n")
        self._stream.flush()


def _seconds(seconds: float) -> str:
    """A time in words: "0.4 s", "45 s", "3 min 20 s", "2 h 5 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
