"""The actual and the predicted timeline of an offloaded iteration as plain data for JSON. Seconds, bytes.

``passes`` are ``[name, begin, end]``, ``moves`` are ``[lane, op, begin, end, nbytes]``. Forward begins at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from fastio.offload.planning.timeline import Timeline
from fastio.offload.report import Iteration, Report

Pass = tuple[str, float, float]
Move = tuple[str, str, float, float, int]
FORWARD, BACKWARD, WRITE, READ = "forward", "backward", "write", "read"
_DIGITS = 6  # of seconds


@dataclass(frozen=True)
class Course:
    """One iteration, actual or predicted."""

    title: str
    passes: Sequence[Pass]
    moves: Sequence[Move]


def document(report: Report) -> dict[str, Any] | None:
    """The latest iteration with a backward pass, and its prediction (or None); None if there is no such iteration."""
    latest = next((one for one in reversed(report.iterations) if one.backward_ended_s is not None), None)
    if latest is None:
        return None
    predicted = None if report.predicted is None else asdict(_predicted(report.predicted))
    return {"policy": report.policy, "actual": asdict(_actual(report, latest)), "predicted": predicted}


def courses(told: dict[str, Any]) -> list[Course]:
    """The courses of a document, the actual one first."""
    return [
        Course(
            str(one["title"]),
            [(str(name), float(begin), float(end)) for name, begin, end in one["passes"]],
            [(str(lane), str(op), float(a), float(b), int(nbytes)) for lane, op, a, b, nbytes in one["moves"]],
        )
        for one in (told["actual"], told["predicted"])
        if one is not None
    ]


def _actual(report: Report, latest: Iteration) -> Course:
    def since(when: float) -> float:
        return round(when - latest.forward_began_s, _DIGITS)

    passes = [(FORWARD, 0.0, since(latest.forward_ended_s))]
    if latest.backward_began_s is not None and latest.backward_ended_s is not None:
        passes.append((BACKWARD, since(latest.backward_began_s), since(latest.backward_ended_s)))
    moves = [
        (f"{event.tier} {event.op}s", event.op, since(event.began_s), since(event.ended_s), event.nbytes)
        for event in report.events
        if event.step == latest.step
    ]
    return Course(f"actual, iteration {latest.step}", passes, sorted(moves, key=lambda move: (move[1] != WRITE, move)))


def _predicted(timeline: Timeline) -> Course:
    middle = timeline.forward_s + timeline.forward_stall_s
    moves = [
        (f"{op}s", op, round(one.start_s, _DIGITS), round(one.finish_s, _DIGITS), 0)
        for op, transfers in ((WRITE, timeline.writes), (READ, timeline.reads))
        for one in transfers
    ]
    return Course("predicted", [(FORWARD, 0.0, middle), (BACKWARD, middle, timeline.iteration_s)], moves)
