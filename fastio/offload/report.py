"""What an Offload did: counts since it was made, and the timeline of its latest steps. Bytes and seconds."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from fastio.offload.schedule import Policy, Schedule, policy_name
from fastio.offload.trace import Trace

_REMEMBERED = 20_000  # events: a few steps of a large model


@dataclass(frozen=True, slots=True)
class Event:
    """One move of one blob: from when it was issued until it was seen to be over (``perf_counter`` seconds)."""

    op: str  # "write" or "read"
    step: int
    ordinal: int
    nbytes: int
    began_s: float
    ended_s: float


@dataclass
class Counts:
    """Counters that the tiers add to."""

    writes: int = 0
    written_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0
    cancelled: int = 0  # writes that backward overtook
    handed_back: int = 0  # unpacks that found the bytes in memory
    retried: int = 0
    encoded: int = 0  # blobs that a codec made smaller
    spared_bytes: int = 0  # by how much
    refused: int = 0  # writes that failed
    passed_through: int = 0  # saved tensors that are not taken: parameters, small ones, other layouts and devices
    stalled_write_s: float = 0.0
    stalled_read_s: float = 0.0
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


@dataclass(frozen=True)
class Report:
    """Plan and facts. ``planned`` is None where the policy plans nothing, or not yet; so is ``store`` without figures.

    ``blobs``, ``blob_bytes`` and ``forward_s`` (without waiting) are those of the forward pass that was profiled.
    ``events`` are the actual timeline, oldest first; ``counts`` has all that was counted since the manager was made.
    """

    policy: str
    blobs: int
    blob_bytes: int
    forward_s: float
    planned: Schedule | None
    planned_bytes: int
    counts: Counts
    events: tuple[Event, ...]
    store: Any

    def __str__(self) -> str:
        counts = self.counts
        lines = [
            f"policy {self.policy}: {self.blobs} saved tensors, {_size(self.blob_bytes)}, "
            f"forward {self.forward_s * 1e3:.1f} ms without waiting",
            f"written {_size(counts.written_bytes)} in {counts.writes}, read {_size(counts.read_bytes)} in "
            f"{counts.reads}; {counts.handed_back} handed back from memory, "
            f"{counts.cancelled} writes overtaken by backward",
            f"stalled {counts.stalled_write_s * 1e3:.1f} ms for writes, {counts.stalled_read_s * 1e3:.1f} ms for reads",
            f"codec made {counts.encoded} smaller, by {_size(counts.spared_bytes)}",
            f"{counts.passed_through} passed through, {counts.refused} writes failed, {counts.retried} reads retried",
        ]
        if self.planned is not None:
            lines.insert(
                1,
                f"planned: {len(self.planned.selected)} move, {_size(self.planned_bytes)}, "
                f"{self.planned.transfer_s * 1e3:.1f} ms of transfers, over at {self.planned.finish_s * 1e3:.1f} ms: "
                f"{self.planned.status}",
            )
        if self.store is not None:
            lines.append(
                f"drive: {self.store.drive_writes_per_day:.2f} writes per day, "
                f"{self.store.lifetime_days:.0f} days of life"
            )
        return "\n".join(lines)


def report(policy: str | Policy, trace: Trace | None, planned: Schedule | None, counts: Counts, store: Any) -> Report:
    """Put together what is known now; later steps do not change it."""
    made = [] if trace is None else trace.made
    return Report(
        policy=policy_name(policy),
        blobs=len(made),
        blob_bytes=sum(one.nbytes for one in made),
        forward_s=0.0 if trace is None else trace.forward_s,
        planned=planned,
        planned_bytes=0 if planned is None else sum(made[i].nbytes for i in planned.selected),
        counts=dataclasses.replace(counts, events=deque()),
        events=tuple(counts.events),
        store=getattr(store, "stats", None),
    )


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB"
