"""A forward pass that was measured, and what is to become of each saved tensor of those like it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from fastio.offload.autograd.trace import LATENCY_S, Trace
from fastio.offload.planning.history import History
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import hides
from fastio.offload.planning.schedule import Policy, Schedule, plan
from fastio.offload.planning.tiering import not_worth_moving, soonest
from fastio.offload.simulation.timeline import Timeline

SIMPLE = ("all", "fastensor")  # what they decide needs no profile
_BY_NEED = ("flashneuron", "optimal")  # without a budget: as if nothing might stay


@dataclass(frozen=True)
class Terms:
    """What the user asked for. Bytes. ``optional_codec``: it is done without where transfers hide all the same."""

    policy: str | Policy
    budget: int | None
    host_budget: int
    optional_codec: bool

    @property
    def spares(self) -> bool:
        """Whether blobs may stay that the policy would move: where no budget says how many bytes may."""
        return self.budget is None and (self.policy == "all" or self.policy in _BY_NEED)


@dataclass
class Profile:
    """``selected`` leave, ``hosted`` of these for host memory; ``kept`` counts those that stay though they would leave,
    because backward wants them sooner than they could be out and back. ``ratios``: what the codec made of each blob.
    """

    trace: Trace
    schedule: Schedule | None = None
    selected: Collection[int] = ()
    hosted: Collection[int] = ()
    kept: int = 0
    settled: bool = False
    history: History = field(default_factory=History)
    ratios: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.ratios = tuple(self.trace.ratio)

    def compared(self, window: int, ahead: int) -> tuple[Timeline | None, float | None]:
        """The simulation of the latest iteration, and the seconds it really took."""
        to_disk = frozenset(self.selected) - frozenset(self.hosted)
        return self.history.compared(self.trace, to_disk, window, ahead)

    def move_all(self, terms: Terms) -> None:
        """Until more is known, for a policy that needs no plan."""
        self.selected = range(len(self.trace.made))
        self._house(terms)

    def settle(self, terms: Terms, window: int) -> None:
        """Decide. Raises InfeasibleBudget."""
        raw = self.trace.without_codec(self.history.pace.get("write") if terms.policy in SIMPLE else None)
        hidden = self._choose(raw, terms, window)
        if terms.optional_codec and hidden:
            self.trace = raw
        elif raw.ratio != self.trace.ratio:
            self._choose(self.trace, terms, window)
        self._house(terms)
        self.settled = True

    def _choose(self, trace: Trace, terms: Terms, window: int) -> bool:
        """What leaves; whether that hides behind the forward pass."""
        blobs = trace.blobs(soonest(trace.stored(), trace.order(), terms.host_budget))
        kept = self._not_worth_moving(trace, window) if terms.spares else frozenset()
        self.kept = len(kept)
        if terms.policy in SIMPLE:
            self.selected = [i for i in range(len(blobs)) if i not in kept]
            return hides(blobs, self.selected, trace.forward_s)
        sizes = [blob.nbytes for blob in blobs]
        need = 0
        if terms.budget is not None:
            if max(sizes) > terms.budget:
                cure = "make the budget larger or the batch smaller"
                raise InfeasibleBudget("the largest saved tensor", max(sizes), terms.budget, cure)
            need = sum(sizes) - (terms.budget - window)
        elif terms.policy in _BY_NEED:
            need = sum(sizes) - sum(sizes[i] for i in kept)
        self.schedule = plan(blobs, need, trace.forward_s, terms.policy)
        self.selected = frozenset(self.schedule.selected)
        return self.schedule.status == "fits"

    def _not_worth_moving(self, trace: Trace, room: int) -> frozenset[int]:
        pace = self.history.pace
        per_byte = sum(1 / pace[way] for way in ("write", "read") if pace.get(way))
        transfer_s = [stored * per_byte + 2 * LATENCY_S for stored in trace.stored()]
        return not_worth_moving([made.nbytes for made in trace.made], trace.away_s(), transfer_s, trace.order(), room)

    def _house(self, terms: Terms) -> None:
        """Share what leaves between host memory and the disk."""
        leaving = [i for i in self.trace.order() if i in self.selected]
        self.hosted = soonest(self.trace.stored(), leaving, terms.host_budget)
