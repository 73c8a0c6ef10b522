"""The settings of saves."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from fastio.dicts.dictionary import Dictionary

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

    def check(self) -> None:
        """Raise ValueError for settings that are unknown, or cannot be combined."""
        if self.when_busy not in get_args(WhenBusy):
            raise ValueError(f"when_busy={self.when_busy!r}: expected 'wait', 'skip' or 'queue'")
        if self.when_busy == "queue" and self.incremental:
            raise ValueError(
                "when_busy='queue': incremental=True compares with one copy, a queue has several: choose one"
            )
        if self.writer not in get_args(Writer):
            raise ValueError(f"writer={self.writer!r}: expected 'thread' or 'process'")
        if self.writer == "process" and not self.asynchronous:
            raise ValueError("writer='process': asynchronous=False writes at once, in this process: choose one")
        if self.writer == "process" and isinstance(self.policy, Dictionary):
            raise ValueError(
                "writer='process': it cannot share policy=<Dictionary>; name a tool, or a dictionary's path"
            )
