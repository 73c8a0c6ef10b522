"""A profiled forward pass, and the plan for the passes like it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from fastio.offload.autograd.trace import DISK, HOST, LATENCY_S, RECOMPUTED, OperatorCall, Trace
from fastio.offload.planning.fitting import Room
from fastio.offload.planning.history import History
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.joint import joint
from fastio.offload.planning.overlap import ActivationProfile, hides
from fastio.offload.planning.schedule import Policy, Schedule, plan, schedule_of
from fastio.offload.planning.step import Step
from fastio.offload.planning.tiering import host_room, not_worth_moving, soonest, whole_pages
from fastio.offload.planning.timeline import Timeline
from fastio.offload.planning.trials import Trials

UNPLANNED = ("all", "fastensor")  # policies that need no profile
BY_LAYER = ("vdnn-all", "vdnn-conv", "vdnn-dyn")  # policies that move, wait and prefetch layer by layer
_CHANGED = 8  # tensors go to another tier if the room for them on the host changed by more than an eighth
_BY_NEED = ("flashneuron", "optimal")  # without a budget, they select as if nothing could stay


@dataclass(frozen=True)
class Settings:
    """What the user set, in bytes. ``optional_codec``: do not encode if the plain transfers hide anyway.

    ``fitted``: the budget is one that was chosen to fit the device, so a plan that cannot keep it moves all it can.
    """

    policy: str | Policy
    budget: int | None
    host_budget: int
    optional_codec: bool
    strict_paper: bool = False
    fitted: bool = False

    @property
    def may_keep(self) -> bool:
        """Whether activations may stay that the policy would move: if no budget limits the bytes in memory."""
        return self.budget is None and (self.policy == "all" or self.policy in _BY_NEED)


class Placement(NamedTuple):
    """Where a saved tensor goes: whether it moves, waits for that and is encoded. ``tier``: "" for any with room.

    ``readers``: it moves when so many operators have saved it, and what follows the last one waits for that (vDNN); 0:
    it moves at once, and nothing waits.
    """

    moves: bool
    waits: bool = False
    encodes: bool = False
    tier: str = ""
    readers: int = 0


@dataclass
class Profile:
    """A profiled pass and its plan.

    ``selected`` activations leave; the ``hosted`` ones of these go to host memory. Backward makes the ``recomputed``
    ones again, each with at most ``recompute_room`` bytes. ``kept`` counts those that stay
    because backward needs them before they could be out and back. ``ratios``: what the codec achieved for each
    activation. ``timed``: the compute times are known; on an accelerator, the pass after the profiled one tells them.
    ``room``: the memory for its saved tensors.
    """

    trace: Trace
    schedule: Schedule | None = None
    selected: Collection[int] = ()
    hosted: Collection[int] = ()
    recomputed: Collection[int] = ()
    recompute_room: int = 0
    kept: int = 0
    planned: bool = False
    timed: bool = True
    room: Room = field(default_factory=Room)
    history: History = field(default_factory=History)
    placements: list[Placement] = field(default_factory=list)  # of its activations, decided once
    ratios: tuple[float, ...] = field(init=False)
    trials: Trials | None = None  # under "vdnn-dyn" without a budget
    pace: float | None = None  # the seconds of later passes, over those of the profiled one
    _host_room: int = 0  # bytes

    def __post_init__(self) -> None:
        self.ratios = tuple(self.trace.ratio)

    def compared(self, window: int, ahead: int) -> tuple[Timeline | None, float | None]:
        """Return the latest iteration as a model has it, and its actual seconds. ``ahead``: bytes to read ahead."""
        to_disk = frozenset(self.selected) - frozenset(self.hosted)
        leaving = to_disk.union(self.recomputed)
        stay = sum(saved.nbytes for i, saved in enumerate(self.trace.saved) if i not in leaving)
        return self.history.compared(self.trace, to_disk, self.recomputed, window, stay + ahead)

    def correct_times(self) -> None:
        """Have the plan made once more when a planned pass has told how slow the profiled one was."""
        if self.planned and self.pace is None:
            self.pace = self.history.pace(self.trace.forward_s)
            self.planned = self.pace is None

    def move_all(self, settings: Settings) -> None:
        """Move everything for now, under a policy that needs no plan."""
        self.selected = range(len(self.trace.saved))
        self._assign_tiers(settings)

    def plan(self, settings: Settings, window: int) -> None:
        """Decide what moves and where. Raises InfeasibleBudget."""
        raw = self.trace.without_codec(self.history.bandwidth.get("write") if settings.policy in UNPLANNED else None)
        hidden = self._choose(raw, settings, window)
        if settings.optional_codec and hidden:
            self.trace = raw
        elif raw.ratio != self.trace.ratio:
            self._choose(self.trace, settings, window)
        self._assign_tiers(settings)
        self.planned = True

    def _choose(self, trace: Trace, settings: Settings, window: int) -> bool:
        """Choose what leaves; return whether that hides behind the forward pass."""
        activations = trace.activations(soonest(trace.stored(), trace.order(), settings.host_budget))
        kept = self._not_worth_moving(trace, window) if settings.may_keep else frozenset()
        self.kept = len(kept)
        if settings.policy in UNPLANNED:
            self.selected = [i for i in range(len(activations)) if i not in kept]
            return hides(activations, self.selected, trace.forward_s)
        sizes = [activation.nbytes for activation in activations]
        need = 0
        if settings.budget is not None:
            if max(sizes) > settings.budget and not settings.fitted:
                cure = "make the budget larger or the batch smaller"
                raise InfeasibleBudget("the largest saved tensor", max(sizes), settings.budget, cure)
            moving = window
            if settings.policy in _BY_NEED:  # others move what they move, whatever comes back for one operator
                moving = max(moving, trace.working_set)
            need = sum(sizes) - max(settings.budget - moving, 0)
        elif settings.policy in _BY_NEED:
            need = sum(sizes) - sum(sizes[i] for i in kept)
        self.recompute_room = 0
        if settings.policy == "optimal" and settings.budget is not None and trace.recomputable and need > 0:
            step = self._step(trace, activations, window, settings.budget)
            choice = joint(step, need)
            self.recompute_room = step.room(choice.recomputed)
            self.schedule = schedule_of(activations, choice.moved, trace.forward_s, choice.recomputed)
        else:
            self.schedule = plan(activations, need, trace.forward_s, self._policy(settings), settings.strict_paper)
        self.recomputed = self.schedule.recomputed
        self.selected = frozenset(self.schedule.selected)
        return self.schedule.status == "fits"

    def _policy(self, settings: Settings) -> str | Policy:
        if self.trials is None:
            return settings.policy
        return _keep_all if self.trials.offloading == "none" else f"vdnn-{self.trials.offloading}"

    @property
    def recomputing_calls(self) -> frozenset[OperatorCall]:
        """The calls of operators that the plan runs again."""
        return frozenset().union(*(self.trace.makers[i].repeated for i in self.recomputed))

    def order(self) -> list[int]:
        """Return the order in which backward needs the tensors: those that others are recomputed from, before these."""
        if not self.recomputed:
            return self.trace.order()
        order: list[int] = []
        had: set[int] = set()

        def need(i: int) -> None:
            if i not in had:
                had.add(i)
                if i in self.recomputed:
                    for source in self.trace.recomputable[i].sources:
                        need(source)
                        order.append(source)

        for use in self.trace.order():
            need(use)
            order.append(use)
        return order

    def _step(self, trace: Trace, activations: Sequence[ActivationProfile], window: float, memory: float) -> Step:
        """Return what the joint planner needs to know."""
        read = self.history.bandwidth.get("read")
        stored = trace.stored()
        pace = self.pace or 1.0
        uses = trace.timed_uses(pace)
        return Step(
            [replace(one, ready_s=one.ready_s * pace) for one in activations],
            trace.forward_s * pace,
            uses[-1][0],
            uses,
            [nbytes / read if read else one.stored_s for nbytes, one in zip(stored, activations, strict=True)],
            trace.recomputable,
            window=window,
            memory=memory,
        )

    def _not_worth_moving(self, trace: Trace, room: int) -> frozenset[int]:
        bandwidth = self.history.bandwidth
        per_byte = sum(1 / bandwidth[way] for way in ("write", "read") if bandwidth.get(way))
        transfer_s = [stored * per_byte + 2 * LATENCY_S for stored in trace.stored()]
        return not_worth_moving(
            [saved.nbytes for saved in trace.saved], trace.away_s(), transfer_s, trace.order(), room
        )

    def divide_again(self, settings: Settings) -> None:
        """Divide what leaves again, if the measured speeds of host memory and the disk have changed by an eighth."""
        if settings.host_budget and self.placements:
            room = self._room_on_host(settings)
            if abs(room - self._host_room) > self._host_room / _CHANGED:
                self._assign_tiers(settings)

    def _room_on_host(self, settings: Settings) -> int:
        paces = self.history.paces()
        if paces is None:
            return settings.host_budget
        stored = self.trace.stored()
        leaving = sum(stored[i] for i in self.selected)
        room = host_room(leaving, settings.host_budget, *paces)
        # One of them at least goes there, so that its speed is known.
        return max(room, min(settings.host_budget, whole_pages(max(stored, default=0))))

    def _assign_tiers(self, settings: Settings) -> None:
        """Divide what leaves between host memory and the disk."""
        leaving = [i for i in self.trace.order() if i in self.selected]
        self._host_room = self._room_on_host(settings)
        self.hosted = soonest(self.trace.stored(), leaving, self._host_room)
        waits = settings.policy == "fastensor"
        selected, hosted = frozenset(self.selected), frozenset(self.hosted)
        readers = self.trace.layers.readers() if settings.policy in BY_LAYER else {}
        self.placements = [
            Placement(i in selected, waits, ratio > 1, HOST if i in hosted else DISK, readers.get(i, 0))
            if i not in self.recomputed
            else Placement(False, tier=RECOMPUTED)
            for i, ratio in enumerate(self.trace.ratio)
        ]


def _keep_all(activations: Sequence[ActivationProfile], need_bytes: int, forward_s: float) -> tuple[int, ...]:
    """The policy by which everything stays."""
    return ()
