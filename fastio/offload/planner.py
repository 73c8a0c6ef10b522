"""From a profiled forward pass to a decision for each saved tensor of the next ones. Times are seconds, sizes bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fastio.offload.infeasible import InfeasibleBudget
from fastio.offload.schedule import POLICIES, Policy, Schedule, plan
from fastio.offload.trace import Made, Trace

SIMPLE = ("all", "fastensor")  # what they decide needs no profile
_BY_NEED = ("flashneuron", "optimal")  # without a budget: as if nothing might stay
_WINDOW = 64 << 20  # bytes that wait to be written, and bytes read ahead, where no budget says otherwise

Key = tuple[int, torch.dtype]


@dataclass
class Profile:
    """A forward pass that was measured, and the plan for those like it."""

    trace: Trace
    schedule: Schedule | None = None
    selected: frozenset[int] = frozenset()


class Planner:
    """Keeps a profile for each size of a forward pass's first blob, so that a last, smaller batch has its own."""

    def __init__(self, policy: str | Policy, budget: int | None) -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}, or a function")
        if not isinstance(policy, str) and not callable(policy):
            raise TypeError(f"policy is a {type(policy).__name__}: expected a name or a function")
        if policy == "vdnn-dyn" and budget is None:
            raise ValueError("policy 'vdnn-dyn' moves as much as a budget asks for: it needs a budget")
        self.policy = policy
        self._budget = budget
        self._profiles: dict[Key, Profile] = {}
        self.latest: Profile | None = None
        # Blobs that stay and blobs on their way share the budget.
        parts = 2 if policy in SIMPLE else 4
        self.window = _WINDOW if budget is None else budget // parts

    def prepare(self) -> None:
        """Plan what was profiled. Raises InfeasibleBudget."""
        for profile in self._profiles.values():
            if profile.schedule is None and self.policy not in SIMPLE:
                self._plan(profile)

    def profile_for(self, first: Made) -> Profile | None:
        """The profile that a forward pass with this first blob follows; None where there is none: it is profiled."""
        return self._profiles.get((first.nbytes, first.dtype))

    def over(self, trace: Trace, profile: Profile | None, strayed: bool) -> None:
        """A forward pass ended well: remember it where it was profiled, forget the profile it did not keep to."""
        if not trace.made:
            return
        key = (trace.made[0].nbytes, trace.made[0].dtype)
        if profile is None:
            self.latest = self._profiles[key] = Profile(trace)
        elif strayed or len(trace.made) != len(profile.trace.made):
            self._profiles.pop(key, None)
            if self.policy in SIMPLE:
                self.latest = self._profiles[key] = Profile(trace)
        else:
            self.latest = profile
            if not profile.trace.uses:  # its backward never ran: this one's may
                profile.trace.uses = trace.uses

    def _plan(self, profile: Profile) -> None:
        blobs = profile.trace.blobs()
        total = sum(blob.nbytes for blob in blobs)
        largest = max(blob.nbytes for blob in blobs)
        need = total if self.policy in _BY_NEED else 0
        if self._budget is not None:
            if largest > self._budget:
                raise InfeasibleBudget(
                    "the largest saved tensor", largest, self._budget, "make the budget larger or the batch smaller"
                )
            need = total - (self._budget - self.window)
        profile.schedule = plan(blobs, need, profile.trace.forward_s, self.policy)
        profile.selected = frozenset(profile.schedule.selected)


def prefix_like(made: Sequence[Made], profile: Profile) -> bool:
    """Whether the newest blob is the one that the profile has at its place."""
    place = len(made) - 1
    return place < len(profile.trace.made) and made[place].like(profile.trace.made[place])
