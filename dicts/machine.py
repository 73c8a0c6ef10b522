"""Whether it was the tool or the machine: another tool, used in the place of one, tells. Pure.

A busy disk slows all tools down for a while, and then they are all faster again. Who blames, or praises, the one tool
that was used leaves the best for long, since nobody looks at it again soon. So a tool that was slow several times is
compared with another every other call, and one that seems faster with the one that it would replace.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fastio.dicts.exploration import Plan
from fastio.dicts.record import Record

MOST_EXCUSES = 4  # in a row: then the machine is slower for good, as far as one can tell
FASTER = 0.7  # a tool was faster than expected by so much, as a logarithm: the machine may be
ALIKE = 0.5  # a tool that changed by this share of what another one did changed with it


class _Faster(NamedTuple):
    """A tool that seemed faster: where, by how much (a logarithm, below 0), and in whose place it was used."""

    tool: str
    bucket: int
    by: float
    place: str


class Machine:
    """Tells changes of the machine from those of single tools, whose ``records`` it moves, all together."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self._records = records
        self._places: dict[str, str] = {}
        self._faster: _Faster | None = None
        self._slower = 0.0

    def ask(self, plan: Plan, may_be_tried: Callable[[str], bool]) -> tuple[str, str] | None:
        """The tool to use in place of the plan's choice, and why; None for the choice itself."""
        choice = plan.choice.tool
        faster = self._faster
        if faster is not None and faster.place != choice:
            if any(e.tool == faster.place and e.known for e in plan.ranked) and may_be_tried(faster.place):
                return faster.place, f"{faster.tool} was faster: with {faster.place} it shows whether the machine is"
            self._faster = None
        record = self._records.get(choice)
        if record is None or not record.trial.wanted or plan.choice.exploring:
            return None
        record.trial.wanted = False
        known = {estimate.tool: estimate.mean for estimate in plan.ranked if estimate.known}
        most = known.get(choice, -math.inf) + record.trial.by
        other = next((tool for tool, at in known.items() if tool != choice and at < most and may_be_tried(tool)), None)
        return None if other is None else (other, f"{choice} was slow: with {other} it shows whether the machine is")

    def tried(self, tool: str, place: str) -> None:
        """A tool is used in the place of another one."""
        if tool != place:
            self._places[tool] = place

    def forget(self, tool: str) -> None:
        """A tool failed: nothing follows from it."""
        self._places.pop(tool, None)
        if self._faster is not None and tool == self._faster.place:
            self._faster = None

    def hear(self, bucket: int, tool: str, deviation: float, variance: float) -> bool:
        """How far off its expected time a tool was; True where the machine was slow, so that it says nothing of it."""
        place = self._places.pop(tool, None)
        faster = self._faster
        if faster is not None:
            if tool == faster.place:
                self._answer(faster, deviation)
        elif place is not None and deviation < -FASTER:
            self._faster = _Faster(tool, bucket, deviation, place)
        suspect = self._records.get(place or "")
        if suspect is None or not suspect.trial.by:
            return False
        by = suspect.trial.by
        if not suspect.trial.compare(deviation, variance):
            return False
        suspect.excuse()
        if suspect.excused >= MOST_EXCUSES:
            self._move(by)
        return True

    def changed(self, tool: str, by: float) -> None:
        """A tool changed its speed. If all became slower and it is as fast again as before, the others are, too."""
        if self._slower > 0 and by < -ALIKE * self._slower:
            self._move(-self._slower, tool)

    def _answer(self, faster: _Faster, deviation: float) -> None:
        """Hear how far off the tool was in whose place another one seemed faster."""
        self._faster = None
        if deviation < ALIKE * faster.by:
            by = (deviation + faster.by) / 2
            self._move(by, faster.tool)
            if faster.tool in self._records:
                self._records[faster.tool].move(by, faster.bucket)

    def _move(self, by: float, but: str = "") -> None:
        """All tools changed by so much, ``but`` one."""
        self._slower = max(0.0, self._slower + by)
        for tool, record in self._records.items():
            if tool != but:
                record.move(by)
