"""Progress of what takes long, and only of that."""

from __future__ import annotations

import time

from fastio.engine.background_job import Progress

_SECONDS = 1.0


def after_a_second(progress: Progress | None) -> Progress | None:
    """The same, told nothing in the first second."""
    if progress is None:
        return None
    began = time.monotonic()

    def tell(done: int, total: int) -> None:
        if time.monotonic() - began >= _SECONDS:
            progress(done, total)

    return tell
