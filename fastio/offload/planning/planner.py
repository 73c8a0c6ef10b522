"""The profiles of a manager: which one a forward pass follows, and when they are planned. Sizes are bytes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Sequence

import torch

from fastio.offload.autograd.trace import Made, Trace
from fastio.offload.planning.profile import SIMPLE, Profile, Terms
from fastio.offload.planning.schedule import POLICIES, Policy

_WINDOW = 24 << 20  # bytes that wait to be written, and bytes read ahead, at least, where no budget says otherwise

_REMEMBERED = 32  # profiles, of some 45 KB each: those that were not used for longest are forgotten

Key = tuple[int, torch.dtype]


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
        self._terms = Terms(policy, budget, host_budget, optional_codec)
        self._profiles: OrderedDict[Key, Profile] = OrderedDict()  # the one that was used last comes last
        self.latest: Profile | None = None
        self._warned = False
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
            known = profile.history.pace if self.policy == "all" else self.policy not in SIMPLE
            if known and not profile.settled:
                profile.settle(self._terms, self.window)

    def profile_for(self, first: Made) -> Profile | None:
        """The profile that a forward pass with this first blob follows; None where there is none: it is profiled."""
        key = (first.nbytes, first.dtype)
        if key in self._profiles:
            self._profiles.move_to_end(key)
        return self._profiles.get(key)

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

    def warn_of_excess(self, trace: Trace) -> None:
        """Say once that no plan can keep the budget: one operator saved more than that.

        A budget of 0 asks for as little memory as can be. The warning is the caller's caller's.
        """
        budget, need = self._terms.budget, trace.working_set
        if budget and need > budget and not self._warned:
            self._warned = True
            warnings.warn(
                f"budget is {budget} bytes, and the tensors that one operator saved, which backward needs at once, "
                f"have {need}: backward will take more than the budget. Make it larger or the batch smaller",
                UserWarning,
                stacklevel=3,
            )

    def _remember(self, key: Key, trace: Trace) -> Profile:
        self.latest = self._profiles[key] = profile = Profile(trace)
        self._profiles.move_to_end(key)
        if len(self._profiles) > _REMEMBERED:
            self._profiles.popitem(last=False)
        if self._terms.budget is None:  # a blob that is larger than its window is waited for
            self.window = max(self.window, 2 * max(made.nbytes for made in trace.made))
        if self.policy in SIMPLE:
            profile.move_all(self._terms)
        return profile


def prefix_like(made: Sequence[Made], profile: Profile) -> bool:
    """Whether the newest blob is the one that the profile has at its place."""
    place = len(made) - 1
    return place < len(profile.trace.made) and made[place].like(profile.trace.made[place])
