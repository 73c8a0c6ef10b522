"""Reports progress only after one second."""

from __future__ import annotations

import time

from fastio.engine.background_job import Progress

_SECONDS = 1.0


def after_a_second(progress: Progress | None) -> Progress | None:
    """Return a progress function that calls ``progress``, but not in the first second; None for None."""
    if progress is None:
        return None
    began = time.monotonic()

    def on_progress(done: int, total: int) -> None:
        if time.monotonic() - began >= _SECONDS:
            progress(done, total)

    return on_progress
