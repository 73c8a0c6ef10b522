"""What an Offload did: counts since it was made, and the timeline of its latest steps. Bytes and seconds."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from fastio.offload.planning.schedule import Schedule, policy_name
from fastio.offload.simulation.timeline import Timeline

if TYPE_CHECKING:
    from fastio.offload.planning.planner import Planner

_REMEMBERED = 20_000  # events: a few steps of a large model
_ITERATIONS = 64


@dataclass(frozen=True, slots=True)
class Event:
    """One move of one blob: from when it was issued until it was seen to be over (``perf_counter`` seconds)."""

    op: Literal["write", "read"]
    step: int
    ordinal: int
    nbytes: int
    began_s: float
    ended_s: float
    tier: str


@dataclass
class Traffic:
    """What went to a tier and came back: bytes as stored."""

    writes: int = 0
    written_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0


@dataclass
class Iteration:
    """When a forward pass and its backward ran (``perf_counter`` seconds).

    Backward begins with the end of forward, and is seen to its last saved tensor. None until then.
    """

    step: int
    forward_began_s: float
    forward_ended_s: float
    backward_began_s: float | None = None
    backward_ended_s: float | None = None

    @property
    def seconds(self) -> float | None:
        """From the begin of forward to the end of backward; None where there was none."""
        return None if self.backward_ended_s is None else self.backward_ended_s - self.forward_began_s


@dataclass
class Counts:
    """Counters that the tiers add to."""

    traffic: dict[str, Traffic] = field(default_factory=dict)
    cancelled: int = 0  # writes that backward overtook
    moved: int = 0  # writes in vain: the program moved the bytes elsewhere in memory meanwhile
    handed_back: int = 0  # unpacks that found the bytes in memory
    retried: int = 0
    encoded: int = 0  # blobs that a codec made smaller
    spared_bytes: int = 0  # by how much
    refused: int = 0  # writes that failed
    passed_through: int = 0  # saved tensors that are not taken: parameters, small ones, other layouts and devices
    stalled_write_s: float = 0.0
    stalled_read_s: float = 0.0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=_ITERATIONS))

    @property
    def writes(self) -> int:
        """Blobs that left, to any tier."""
        return sum(traffic.writes for traffic in self.traffic.values())

    @property
    def reads(self) -> int:
        """Blobs that came back, from any tier."""
        return sum(traffic.reads for traffic in self.traffic.values())


@dataclass(frozen=True)
class Report:
    """Plan and facts. ``planned`` is None where the policy plans nothing, or not yet; so is ``store`` without figures.

    ``blobs``, ``blob_bytes`` and ``forward_s`` (without waiting) are those of the forward pass that was profiled.
    ``kept`` counts the blobs that would leave, but for backward wanting them sooner than they could be out and back.
    ``ratios`` has for each blob of that pass its bytes over those that the codec made of them, 1 where it made none.
    ``counts`` has all that was counted since the manager was made; ``events`` and ``iterations`` are the actual
    timeline, oldest first. ``predicted`` is the simulated one of the latest iteration whose backward is over, from what
    the iterations before it took (so there is none for the first, and none for shapes that were seen once);
    ``predicted_s`` and ``actual_s`` are the seconds of that iteration, from the begin of forward until backward has
    its last saved tensor.
    """

    policy: str
    blobs: int
    blob_bytes: int
    forward_s: float
    planned: Schedule | None
    planned_bytes: int
    kept: int
    ratios: tuple[float, ...]
    predicted: Timeline | None
    actual_s: float | None
    counts: Counts
    events: tuple[Event, ...]
    iterations: tuple[Iteration, ...]
    store: Any

    @property
    def traffic(self) -> dict[str, Traffic]:
        """What went to each tier and came back."""
        return self.counts.traffic

    @property
    def predicted_s(self) -> float | None:
        """Seconds that the simulation gives the latest iteration."""
        return None if self.predicted is None else self.predicted.iteration_s

    def __str__(self) -> str:
        return "\n".join([*self._planned_lines(), *self._counted_lines()])

    def _planned_lines(self) -> list[str]:
        lines = [
            f"policy {self.policy}: {self.blobs} saved tensors, {_size(self.blob_bytes)}, "
            f"forward {_ms(self.forward_s)} without waiting"
        ]
        if self.planned is not None:
            lines.append(
                f"planned: {len(self.planned.selected)} move, {_size(self.planned_bytes)}, "
                f"{_ms(self.planned.transfer_s)} of transfers, over at {_ms(self.planned.finish_s)}: "
                f"{self.planned.status}"
            )
        if self.kept:
            lines.append(f"{self.kept} more stay: backward wants them sooner than they could be out and back")
        if self.predicted is not None and self.actual_s is not None:
            lines.append(f"iteration: predicted {_ms(self.predicted.iteration_s)}, took {_ms(self.actual_s)}")
        return lines

    def _ratios(self) -> str:
        paying = [ratio for ratio in self.ratios if ratio > 1]
        if not paying:
            return ""
        span = f"{min(paying):.2f} to {max(paying):.2f} times"
        return f"; of {len(self.ratios)} in the profiled pass {len(paying)}, {span}"

    def _counted_lines(self) -> list[str]:
        counts = self.counts
        lines = [
            f"{tier}: written {_size(one.written_bytes)} in {one.writes}, read {_size(one.read_bytes)} in {one.reads}"
            for tier, one in self.traffic.items()
        ]
        lines += [
            f"{counts.handed_back} handed back from memory, {counts.cancelled} writes overtaken by backward",
            f"stalled {_ms(counts.stalled_write_s)} for writes, {_ms(counts.stalled_read_s)} for reads",
            f"codec made {counts.encoded} smaller, by {_size(counts.spared_bytes)}{self._ratios()}",
            f"{counts.passed_through} passed through, {counts.refused} writes failed, {counts.retried} reads retried"
            + (f", {counts.moved} writes in vain, of memory that moved" if counts.moved else ""),
        ]
        if self.store is not None:
            lines.append(
                f"drive: {self.store.drive_writes_per_day:.2f} writes per day, "
                f"{self.store.lifetime_days:.0f} days of life"
            )
        return lines


def report(planner: Planner, counts: Counts, store: Any) -> Report:
    """Put together what is known now; later steps do not change it."""
    profile = planner.latest
    made = [] if profile is None else profile.trace.made
    planned = None if profile is None else profile.schedule
    predicted, actual_s = (None, None) if profile is None else profile.compared(planner.window, planner.ahead)
    traffic = {tier: dataclasses.replace(one) for tier, one in counts.traffic.items()}
    return Report(
        policy=policy_name(planner.policy),
        blobs=len(made),
        blob_bytes=sum(one.nbytes for one in made),
        forward_s=0.0 if profile is None else profile.trace.forward_s,
        planned=planned,
        planned_bytes=0 if planned is None else sum(made[i].nbytes for i in planned.selected),
        kept=0 if profile is None else profile.kept,
        ratios=() if profile is None else profile.ratios,
        predicted=predicted,
        actual_s=actual_s,
        counts=dataclasses.replace(counts, events=deque(), iterations=deque(), traffic=traffic),
        events=tuple(counts.events),
        iterations=tuple(dataclasses.replace(one) for one in counts.iterations),
        store=getattr(store, "stats", None),
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
