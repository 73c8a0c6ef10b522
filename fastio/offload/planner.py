"""From a profiled forward pass to a decision for each saved tensor of the next ones. Times are seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import torch

from fastio.offload.history import History
from fastio.offload.infeasible import InfeasibleBudget
from fastio.offload.overlap import hides
from fastio.offload.schedule import POLICIES, Policy, Schedule, plan
from fastio.offload.tiering import not_worth_moving, soonest
from fastio.offload.timeline import Timeline
from fastio.offload.trace import Made, Trace

SIMPLE = ("all", "fastensor")  # what they decide needs no profile
_BY_NEED = ("flashneuron", "optimal")  # without a budget: as if nothing might stay
_WINDOW = 24 << 20  # bytes that wait to be written, and bytes read ahead, at least, where no budget says otherwise

Key = tuple[int, torch.dtype]


@dataclass
class Profile:
    """A forward pass that was measured, and the plan for those like it."""

    trace: Trace
    schedule: Schedule | None = None
    selected: Collection[int] = ()
    hosted: Collection[int] = ()  # of these, those that stay in host memory
    spared: bool = False  # what is not worth moving was looked for
    kept: int = 0  # how many that was
    history: History = field(default_factory=History)

    def compared(self, window: int, ahead: int) -> tuple[Timeline | None, float | None]:
        """The simulation of the latest iteration, and the seconds it really took."""
        to_disk = frozenset(self.selected) - frozenset(self.hosted)
        return self.history.compared(self.trace, to_disk, window, ahead)


class Planner:
    """Keeps a profile for each size of a forward pass's first blob, so that a last, smaller batch has its own."""

    def __init__(self, policy: str | Policy, budget: int | None, host_budget: int, optional_codec: bool) -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}, or a function")
        if not isinstance(policy, str) and not callable(policy):
            raise TypeError(f"policy is a {type(policy).__name__}: expected a name or a function")
        if policy == "vdnn-dyn" and budget is None:
            raise ValueError("policy 'vdnn-dyn' moves as much as a budget asks for: it needs a budget")
        self.policy = policy
        self._budget = budget
        self._host_budget = host_budget
        self._optional_codec = optional_codec  # it is done without where transfers hide all the same
        self._profiles: dict[Key, Profile] = {}
        self.latest: Profile | None = None
        # Blobs that stay and blobs on their way share the budget.
        parts = 2 if policy in SIMPLE else 4
        self.window = _WINDOW if budget is None else budget // parts

    @property
    def ahead(self) -> int:
        """Bytes that may be read before they are asked for."""
        return 0 if self.policy == "fastensor" else self.window

    def prepare(self) -> None:
        """Plan what was profiled. Raises InfeasibleBudget."""
        for profile in self._profiles.values():
            if profile.schedule is None and self.policy not in SIMPLE:
                self._plan(profile)
            if self._spares and not profile.spared and profile.history.pace:
                self._spare(profile)

    def profile_for(self, first: Made) -> Profile | None:
        """The profile that a forward pass with this first blob follows; None where there is none: it is profiled."""
        return self._profiles.get((first.nbytes, first.dtype))

    def over(self, trace: Trace, profile: Profile | None, strayed: bool) -> Profile | None:
        """A forward pass ended well: remember it where it was profiled, forget the profile it did not keep to.

        The profile that it is, or followed.
        """
        if not trace.made:
            return None
        key = (trace.made[0].nbytes, trace.made[0].dtype)
        if profile is None:
            return self._remember(key, trace)
        if strayed or len(trace.made) != len(profile.trace.made):
            self._profiles.pop(key, None)
            return self._remember(key, trace) if self.policy in SIMPLE else None
        self.latest = profile
        if not profile.trace.uses:  # its backward never ran: this one's may
            profile.trace.uses, profile.trace.used_s = trace.uses, trace.used_s
        return profile

    @property
    def _spares(self) -> bool:
        """Whether blobs may stay that the policy would move: where that breaks no promise."""
        return self.policy == "all" or (self.policy in _BY_NEED and self._budget is None)

    def _spare(self, profile: Profile) -> None:
        """Leave where they are those that backward wants sooner than a write and a read take."""
        pace = profile.history.pace
        profile.spared = True
        if self.policy in SIMPLE and self._optional_codec and pace.get("write"):
            raw = profile.trace.without_codec(pace["write"])
            if hides(raw.blobs(profile.hosted), sorted(profile.selected), raw.forward_s):
                profile.trace = raw
        trace = profile.trace
        per_byte = sum(1 / pace[way] for way in ("write", "read") if pace.get(way))
        kept = not_worth_moving(
            [made.nbytes for made in trace.made],
            trace.away_s(),
            [stored * per_byte for stored in trace.stored()],
            trace.order(),
            self.window // 2,
        )
        profile.kept = len(kept)
        profile.selected = frozenset(profile.selected) - kept
        self._house(profile)

    def _remember(self, key: Key, trace: Trace) -> Profile:
        self.latest = self._profiles[key] = profile = Profile(trace)
        if self._budget is None:  # a blob that is larger than its window is waited for
            self.window = max(self.window, 2 * max(made.nbytes for made in trace.made))
        if self.policy in SIMPLE:
            profile.selected = range(len(trace.made))
            self._house(profile)
        return profile

    def _plan(self, profile: Profile) -> None:
        total = sum(made.nbytes for made in profile.trace.made)
        largest = max(made.nbytes for made in profile.trace.made)
        need = total if self.policy in _BY_NEED else 0
        if self._budget is not None:
            if largest > self._budget:
                raise InfeasibleBudget(
                    "the largest saved tensor", largest, self._budget, "make the budget larger or the batch smaller"
                )
            need = total - (self._budget - self.window)
        raw = profile.trace.without_codec()
        profile.schedule = self._planned(raw, need)
        if self._optional_codec and profile.schedule.status == "fits":
            profile.trace = raw
        elif raw.ratio != profile.trace.ratio:
            profile.schedule = self._planned(profile.trace, need)
        profile.selected = frozenset(profile.schedule.selected)
        self._house(profile)

    def _planned(self, trace: Trace, need: int) -> Schedule:
        hosted = soonest(trace.stored(), trace.order(), self._host_budget)
        return plan(trace.blobs(hosted), need, trace.forward_s, self.policy)

    def _house(self, profile: Profile) -> None:
        """Share what leaves between host memory and the disk."""
        leaving = [i for i in profile.trace.order() if i in profile.selected]
        profile.hosted = soonest(profile.trace.stored(), leaving, self._host_budget)


def prefix_like(made: Sequence[Made], profile: Profile) -> bool:
    """Whether the newest blob is the one that the profile has at its place."""
    place = len(made) - 1
    return place < len(profile.trace.made) and made[place].like(profile.trace.made[place])
