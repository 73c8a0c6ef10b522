"""What an Offload did: its counts, and the timeline of its latest steps. Bytes and seconds."""

from __future__ import annotations

import dataclasses
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fastio.offload import freed_blocks
from fastio.offload.autograd.trace import Trace
from fastio.offload.planning.fitting import Fit
from fastio.offload.planning.profile import Profile
from fastio.offload.planning.schedule import Schedule
from fastio.offload.planning.timeline import Timeline

if TYPE_CHECKING:
    from fastio.offload.planning.planner import Planner
    from fastio.offload.stores.peer_slab import Route

_REMEMBERED = 20_000  # transfers: a few steps of a large model
_ITERATIONS = 64
_GAP = 0.25  # between the predicted and the actual seconds: above it, the report says what that means
_TELLING_S = 600.0  # seconds of a store: before, its rate of writing says nothing about a drive's life
_HIDES = {"fits": "hidden behind forward", "delayed": "not hidden behind forward"}


class Event(NamedTuple):
    """One transfer of one saved tensor, from its issue until its end was seen (``perf_counter`` seconds).

    A copy between a device and host memory ends for it when it is issued: the host does not wait for its end.
    """

    op: Literal["write", "read"]
    step: int
    ordinal: int
    nbytes: int
    began_s: float
    ended_s: float
    tier: str


# Events that were issued together, with all their ordinals and bytes: plain tuples, which garbage collections skip.
Transfers = tuple[Literal["write", "read"], int, tuple[int, ...], tuple[int, ...], float, float, str]


@dataclass
class Traffic:
    """Transfers to and from one tier; stored bytes."""

    writes: int = 0
    written_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0


@dataclass
class Iteration:
    """When a forward pass and its backward ran (``perf_counter`` seconds).

    Backward begins when forward ends, and ends with its last saved tensor. None until then. ``waited_s``: seconds in
    both that the thread that trains waited for transfers. ``profiled``: each transfer was waited for, to be measured.
    """

    step: int
    forward_began_s: float
    forward_ended_s: float
    backward_began_s: float | None = None
    backward_ended_s: float | None = None
    waited_s: float = 0.0
    profiled: bool = False

    @property
    def seconds(self) -> float | None:
        """Seconds from the beginning of forward to the end of backward; None before that."""
        return None if self.backward_ended_s is None else self.backward_ended_s - self.forward_began_s


@dataclass
class Counts:
    """Counts that the tiers increment."""

    traffic: dict[str, Traffic] = field(default_factory=dict)
    cancelled: int = 0  # writes dropped because backward needed the tensor first
    moved: int = 0  # writes discarded because the program moved the bytes meanwhile
    handed_back: int = 0  # unpacks that found the bytes in memory
    retried: int = 0
    encoded: int = 0  # saved tensors that a codec made smaller
    spared_bytes: int = 0  # bytes saved by encoding
    refused: int = 0  # writes that failed
    passed_through: int = 0  # saved tensors that are not offloaded: parameters, small ones, other layouts and devices
    routes: dict[str, Route] = field(default_factory=dict)  # to the store, by device
    recomputed: int = 0  # saved tensors that were computed again in backward
    recomputed_bytes: int = 0
    recompute_s: float = 0.0  # until the operators returned
    stalled_write_s: float = 0.0
    stalled_read_s: float = 0.0
    transfers: deque[Transfers] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    iterations: deque[Iteration] = field(default_factory=lambda: deque(maxlen=_ITERATIONS))

    @property
    def writes(self) -> int:
        """The number of tensors written, to any tier."""
        return sum(traffic.writes for traffic in self.traffic.values())

    @property
    def reads(self) -> int:
        """The number of tensors read back, from any tier."""
        return sum(traffic.reads for traffic in self.traffic.values())


@dataclass(frozen=True)
class Report:
    """The plan and what happened. ``planned`` is None if the policy plans nothing, or has not planned yet.
    ``planned_bytes`` move by it, and backward recomputes ``recomputed_bytes``.

    ``budget``: bytes of memory for the saved tensors of the profiled pass, None if nothing limits them. ``fit`` says
    how it was chosen, if the user gave none. ``tightened``: how often it was halved, because memory had run out.

    ``kept_bytes`` of the profiled pass stay in memory after forward, by the plan. ``awaits_plan``: none do, because
    that pass moves everything, and no pass that follows a plan has begun.

    ``activations``, ``activation_bytes`` and ``forward_s`` (without waits) describe the profiled forward pass. ``kept``
    counts the activations that stay because backward needs them before they could be out and back. ``ratios`` has, for
    each activation of that pass, its bytes over its encoded bytes; 1 if it was not encoded. ``counts`` covers the time
    since the manager was made. ``events`` and ``iterations`` are the actual timeline, oldest first. ``predicted``
    simulates the latest iteration whose backward ended, from the times of the iterations before it; it is None for the
    first iteration, and for shapes seen once. ``predicted_s`` and ``actual_s`` are the seconds of that iteration, from
    the beginning of forward until backward has its last saved tensor. ``store`` has the store's statistics, None if it
    keeps none. ``profiling_waited_s``: of the seconds that ``counts`` has for waits, those of the profiled passes.
    ``trials``: under "vdnn-dyn" without a budget, the passes that were tried, and whether memory sufficed.
    ``on_cpu``: the saved tensors are in host memory. ``blocks_returned``: what is freed there goes back to the system.
    """

    policy: str
    budget: int | None
    fit: Fit | None
    tightened: int
    activations: int
    activation_bytes: int
    forward_s: float
    planned: Schedule | None
    planned_bytes: int
    recomputed_bytes: int
    kept_bytes: int
    awaits_plan: bool
    kept: int
    ratios: tuple[float, ...]
    predicted: Timeline | None
    actual_s: float | None
    counts: Counts
    events: tuple[Event, ...]
    iterations: tuple[Iteration, ...]
    store: Any
    profiling_waited_s: float
    on_cpu: bool
    blocks_returned: bool
    trials: tuple[tuple[str, bool], ...] = ()

    @property
    def traffic(self) -> dict[str, Traffic]:
        """Transfers to and from each tier."""
        return self.counts.traffic

    @property
    def routes(self) -> dict[str, Route]:
        """How the tensors of each accelerator reach the store, and why not by a better way."""
        return self.counts.routes

    @property
    def predicted_s(self) -> float | None:
        """The simulated seconds of the latest iteration."""
        return None if self.predicted is None else self.predicted.iteration_s

    @property
    def latest(self) -> Iteration | None:
        """The latest iteration whose backward ended."""
        return next((one for one in reversed(self.iterations) if one.backward_ended_s is not None), None)

    @property
    def headline(self) -> list[str]:
        """Memory kept against the budget, and the share of time waited, in a line each."""
        return [self._memory_line(), self._waiting_line()]

    def __repr__(self) -> str:
        planned = "not planned" if self.planned is None else f"to move: {len(self.planned.selected)}"
        written = ", ".join(f"written to {tier}: {one.writes}" for tier, one in self.traffic.items()) or "nothing moved"
        return f"<fastio offload Report: policy {self.policy}, saved tensors: {self.activations}, {planned}, {written}>"

    def __str__(self) -> str:
        return "\n".join([*self.headline, *self._hint(), *self._planned_lines(), *self._counted_lines()])

    def _memory_line(self) -> str:
        if not self.activations:
            return f"memory: not known yet, {self._why_unknown()}"
        budget = "no budget limits them" if self.budget is None else f"budget {_size(self.budget)}"
        if self.awaits_plan:
            return f"memory: all {_size(self.activation_bytes)} saved moved, nothing is planned yet; {budget}"
        if self.budget is not None and self.kept_bytes < min(self.budget, self.activation_bytes):
            budget += ", rest for transfers"
        return f"memory: {_size(self.kept_bytes)} of {_size(self.activation_bytes)} saved stay; {budget}"

    def _why_unknown(self) -> str:
        """Return why no forward pass has told what it saves."""
        if self.counts.refused:
            return "the store failed in the forward passes that ended: what they saved stayed in memory"
        if any(one.backward_began_s is not None for one in self.iterations):
            return f"no forward pass of the {self.iterations[-1].step} that began was profiled"
        begun = f" ({self.iterations[-1].step} began)" if self.iterations else ""
        return f"no forward pass has ended{begun}"

    def _waiting_line(self) -> str:
        latest = self.latest
        if latest is None or not latest.seconds:
            return "waiting: not known yet, no backward pass has ended"
        share = latest.waited_s / latest.seconds
        which = "latest pass, which was profiled" if latest.profiled else "latest pass"
        return f"waiting: {share:.0%} of the {which}: {_ms(latest.waited_s)} of {_ms(latest.seconds)}"

    def _hint(self) -> list[str]:
        if not self.on_cpu or self.kept_bytes == self.activation_bytes or self.blocks_returned:
            return []
        return [
            "  (no budget limits resident memory: operators take workspace, and freed blocks",
            "  stay with the process while memory is plenty, or with another allocator)",
        ]

    def _planned_lines(self) -> list[str]:
        """What each pass does; empty before the first."""
        if not self.activations:
            return []
        lines = [
            f"each pass, by policy {self.policy}:",
            f"  profiled: {self.activations} saved tensors, {_size(self.activation_bytes)}; forward "
            f"{_ms(self.forward_s)} without waiting",
        ]
        if self.fit is not None:
            whose = "the process can still take" if self.fit.device == "cpu" else "torch can have there"
            lines += [
                f"  budget {_size(self.fit.budget)}, to fit {self.fit.device}: of {_size(self.fit.limit)} that {whose}",
                f"  all else takes {_size(self.fit.others)} at its peak, and {_size(self.fit.reserve)} are left free",
            ]
        if self.tightened and self.budget is not None:
            times = "once" if self.tightened == 1 else f"{self.tightened} times"
            lines.append(f"  memory ran out {times}: the budget is {_size(self.budget)} now")
        if self.planned is not None:
            lines.append(
                f"  planned: {len(self.planned.selected)} move, {_size(self.planned_bytes)}{self._recomputed()}"
            )
            if self.planned.selected:
                lines.append(
                    f"  planned: {_ms(self.planned.transfer_s)} of writes, over at {_ms(self.planned.finish_s)}: "
                    f"{_HIDES[self.planned.status]}"
                )
        if self.kept:
            lines.append(f"  {self.kept} more stay: backward wants them sooner than they could be out and back")
        if self.predicted is not None and self.actual_s is not None:
            predicted = self.predicted.iteration_s
            lines.append(f"  latest pass: took {_ms(self.actual_s)}; predicted from those before it: {_ms(predicted)}")
            if abs(predicted - self.actual_s) > _GAP * self.actual_s:
                lines.append("  (a gap means: it computed or transferred at another speed than they did)")
        return lines

    def _recomputed(self) -> str:
        recomputed = () if self.planned is None else self.planned.recomputed
        return f"; {len(recomputed)} are recomputed, {_size(self.recomputed_bytes)}" if recomputed else ""

    def _ratios(self) -> str:
        paying = [ratio for ratio in self.ratios if ratio > 1]
        if not paying:
            return ""
        return f"; {min(paying):.2f} to {max(paying):.2f} times in the profiled pass"

    def _counted_lines(self) -> list[str]:
        """What happened since the start; counts of 0 are left out."""
        counts = self.counts
        lines = [
            f"  {tier}: {_size(one.written_bytes)} in {one.writes} writes, {_size(one.read_bytes)} in {one.reads} reads"
            for tier, one in self.traffic.items()
            if one.writes or one.reads
        ]
        told = (
            (counts.handed_back, "tensors were still in memory when backward needed them: no read, no wait"),
            (counts.cancelled, "writes were dropped, because backward needed the tensor first"),
            (counts.passed_through, "times a tensor stayed that never moves: parameter, small, other layout"),
            (counts.moved, "writes were in vain: the program moved the memory meanwhile"),
            (counts.refused, "writes failed: these tensors stayed in memory"),
            (counts.retried, "reads failed once, and were tried again"),
        )
        lines += [f"  {count} {text}" for count, text in told if count]
        if counts.stalled_write_s or counts.stalled_read_s:
            waits = f"{_ms(counts.stalled_write_s)} for writes, {_ms(counts.stalled_read_s)} for reads"
            lines.append(f"  waited: {waits}")
        if self.profiling_waited_s:
            lines.append(f"  of which {_ms(self.profiling_waited_s)} in profiled passes, which wait for each transfer")
        if counts.encoded:
            lines.append(f"  codec: {counts.encoded} made smaller, by {_size(counts.spared_bytes)}{self._ratios()}")
        if counts.recomputed:
            recomputed = f"{_size(counts.recomputed_bytes)}, in {_ms(counts.recompute_s)}"
            lines.append(f"  recomputed {counts.recomputed}, {recomputed}")
        if routes := getattr(self.store, "routes", {}):
            lines.append(f"  transfers by route: {', '.join(f'{name} {count}' for name, count in routes.items())}")
        lines += _wear(self.store)
        passes = self.iterations[-1].step if self.iterations else 0
        title = [f"sums since the start, of {passes} forward pass{'' if passes == 1 else 'es'}:"] if lines else []
        return [*(f"{device} to the store: {route}" for device, route in counts.routes.items()), *title, *lines]


def report(planner: Planner, counts: Counts, store: Any) -> Report:
    """Return a snapshot that later steps do not change."""
    profile = planner.latest or Profile(Trace())
    saved, planned = profile.trace.saved, profile.schedule
    leaving = {*profile.selected, *profile.recomputed}
    awaits_plan = bool(saved) and not profile.placements
    kept_bytes = 0 if awaits_plan else sum(one.nbytes for i, one in enumerate(saved) if i not in leaving)
    predicted, actual_s = profile.compared(planner.window, planner.room_to_read(kept_bytes, 0))
    traffic = {tier: dataclasses.replace(one) for tier, one in counts.traffic.items()}
    return Report(
        policy=planner.title,
        budget=planner.budget_of(profile),
        fit=profile.room.fit,
        tightened=planner.tightened,
        activations=len(saved),
        activation_bytes=sum(one.nbytes for one in saved),
        forward_s=profile.trace.forward_s,
        planned=planned,
        planned_bytes=0 if planned is None else sum(saved[i].nbytes for i in planned.selected),
        recomputed_bytes=0 if planned is None else sum(saved[i].nbytes for i in planned.recomputed),
        kept_bytes=kept_bytes,
        awaits_plan=awaits_plan,
        kept=profile.kept,
        ratios=profile.ratios,
        predicted=predicted,
        actual_s=actual_s,
        counts=dataclasses.replace(
            counts, transfers=deque(), iterations=deque(), traffic=traffic, routes=dict(counts.routes)
        ),
        events=tuple(
            Event(op, number, ordinal, nbytes, began_s, ended_s, tier)
            for op, number, ordinals, sizes, began_s, ended_s, tier in counts.transfers
            for ordinal, nbytes in zip(ordinals, sizes, strict=True)
        ),
        iterations=tuple(dataclasses.replace(one) for one in counts.iterations),
        store=getattr(store, "stats", None),
        profiling_waited_s=planner.profiling_waited_s,
        on_cpu=planner.is_on_cpu,
        blocks_returned=freed_blocks.are_returned(),
        trials=() if profile.trials is None else tuple(profile.trials.tried),
    )


def _wear(store: Any) -> list[str]:
    """How long the drive lasts at the mean rate of writing; nothing if nothing was written, or not for long enough."""
    if store is None or not store.drive_writes_per_day or store.seconds < _TELLING_S:
        return []
    years = store.lifetime_days / 365
    lasts = (
        "over 100 years" if years > 100 else f"{years:.1f} years" if years >= 1 else f"{store.lifetime_days:.0f} days"
    )
    return [
        f"  wear: training day and night writes the drive {store.drive_writes_per_day:.2g} times a day: one that",
        f"  is rated for 3 a day over 5 years lasts {lasts}",
    ]


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**20:.1f} MiB" if nbytes < 10 << 30 else f"{nbytes / 2**30:.1f} GiB"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
