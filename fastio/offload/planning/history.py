"""What past iterations of one shape took, and what the next will: measured times in, a simulated timeline out. Pure.

Times are seconds, sizes bytes. Compute is what is left of a pass when the time that it stood still is taken out.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from fastio.offload.autograd.trace import Trace
from fastio.offload.simulation.timeline import Timeline
from fastio.offload.simulation.write_behind import Move, predict

_REMEMBERED = 8  # iterations
_DECISIVE = 0.2  # of the time that a channel was busy, stood still for: then it was seen at its full pace


class Busy:
    """How long a channel had something under way, told of transfers in the order in which they ended."""

    def __init__(self) -> None:
        self.nbytes = 0
        self.seconds = 0.0
        self._until = 0.0

    def add(self, nbytes: int, began_s: float, ended_s: float) -> None:
        """One more transfer."""
        self.nbytes += nbytes
        self.seconds += max(0.0, ended_s - max(began_s, self._until))
        self._until = max(self._until, ended_s)


@dataclass
class Run:
    """One iteration: seconds of compute, seconds stood still, what the channels to and from the disk did."""

    forward_s: float = 0.0
    backward_s: float = 0.0
    stalled_s: float = 0.0
    actual_s: float = 0.0
    waited: bool = False  # each transfer was waited for
    channels: dict[str, Busy] = field(default_factory=lambda: {"write": Busy(), "read": Busy()})


class History:
    """The latest iterations that followed one profile, the profiled one first."""

    def __init__(self) -> None:
        self._runs: deque[tuple[Run, Mapping[str, float]]] = deque(maxlen=_REMEMBERED)
        self._pace: dict[str, float] = {}  # bytes/s, by direction

    @property
    def pace(self) -> Mapping[str, float]:
        """Bytes/s that the disk was seen to write and to read, as far as it was."""
        return self._pace

    def add(self, run: Run) -> None:
        """An iteration is over."""
        self._runs.append((run, dict(self._pace)))
        for direction, busy in run.channels.items():
            decisive = run.waited or run.stalled_s > _DECISIVE * busy.seconds or direction not in self._pace
            if decisive and busy.seconds > 0:
                self._pace[direction] = busy.nbytes / busy.seconds

    def compared(
        self, trace: Trace, selected: Collection[int], window: int, ahead: int
    ) -> tuple[Timeline | None, float | None]:
        """The simulation of the latest iteration from what was known before it, and the seconds it really took."""
        if len(self._runs) < 2:
            return None, None
        latest, pace = self._runs[-1]
        before = [run for run, _ in self._runs][:-1]
        before = before[1:] or before  # the first of a process is slower for other reasons, and the second often too
        forward_s = statistics.median_low(run.forward_s for run in before)
        backward_s = statistics.median_low(run.backward_s for run in before)
        moves = _moves(trace, forward_s, backward_s, pace)
        return predict(moves, selected, forward_s, backward_s, window, ahead), latest.actual_s


def _moves(trace: Trace, forward_s: float, backward_s: float, pace: Mapping[str, float]) -> list[Move]:
    later = forward_s / trace.forward_s if trace.forward_s > 0 else 0.0
    last = max(trace.used_s.values(), default=0.0)
    back = backward_s / last if last > 0 else 0.0
    moves: list[Move] = []
    for i, (made, ratio) in enumerate(zip(trace.made, trace.ratio, strict=True)):
        stored = made.nbytes / ratio
        write_s, read_s = (stored / pace[way] if pace.get(way) else 0.0 for way in ("write", "read"))
        needed_s = trace.used_s[i] * back if i in trace.used_s else None
        moves.append(Move(made.nbytes, write_s, read_s, made.ready_s * later, needed_s))
    return moves
