"""The settings of saves."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

WhenBusy = Literal["wait", "skip", "queue"]
Writer = Literal["thread", "process"]


class SaveSettings(NamedTuple):
    """How to save: see :class:`fastio.checkpoint.Checkpointer`. ``memory_budget`` is in bytes."""

    keep: int | None
    keep_every: int | None
    asynchronous: bool
    memory_budget: int | None
    incremental: bool
    when_busy: WhenBusy
    writer: Writer
    read_back: bool
    policy: Any
    progress: Any
