"""The profiles of a manager: which one a forward pass follows, and when they are planned. Sizes are bytes."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import ref

import torch

from fastio.offload.autograd.trace import SavedRecord, Trace
from fastio.offload.planning.profile import UNPLANNED, Profile, Settings
from fastio.offload.planning.schedule import POLICIES, Policy
from fastio.offload.planning.tiering import least_worth_moving

if TYPE_CHECKING:
    from fastio.offload.autograd.forward_pass import ForwardPass

_WINDOW = 24 << 20  # least bytes that wait for their write, and bytes read ahead, without a budget

_REMEMBERED = 32  # profiles, of some 45 KB each; the least recently used are forgotten

Key = tuple[int, torch.dtype]


class Planner:
    """Keeps a profile per size and dtype of a pass's first activation, so that a smaller last batch has its own."""

    def __init__(self, policy: str | Policy, budget: int | None, host_budget: int, optional_codec: bool) -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}, or a function")
        if not isinstance(policy, str) and not callable(policy):
            raise TypeError(f"policy is a {type(policy).__name__}: expected a name or a function")
        if policy == "vdnn-dyn" and budget is None:
            raise ValueError("policy 'vdnn-dyn' moves as much as a budget requires: give it a budget")
        self.policy = policy
        self._settings = Settings(policy, budget, host_budget, optional_codec)
        self._profiles: OrderedDict[Key, Profile | None] = OrderedDict()  # least recently used first; None: warmed up
        self.latest: Profile | None = None
        self.least: int | None = None  # bytes: smaller activations on an accelerator stay; None: not known yet
        # Of all threads, and those whose graphs live on. No WeakSet: an interrupt in its callbacks would be lost.
        self._passes: list[ref[ForwardPass]] = []
        self._warned = False
        # Activations that stay and activations in transfer share the budget. Where all move, transfers have all of it:
        # a budget of two of the largest activation lets one be transferred while the other is computed or used.
        parts = 1 if policy in UNPLANNED else 4
        self.window = _WINDOW if budget is None else budget // parts

    @property
    def transit(self) -> int:
        """Bytes that may be written and read at a time: a window of each, but within the budget."""
        budget = self._settings.budget
        return 2 * self.window if budget is None else min(2 * self.window, budget)

    def room_to_write(self, pending: int) -> int:
        """Return the bytes that may wait for their write in forward. Those of ``pending`` bytes have not begun."""
        return self.window if self._settings.budget is None else self.window - pending

    def add_pass(self, step: ForwardPass) -> None:
        """Add a forward pass, which shares the budget with the others."""
        self._passes = [*(one for one in self._passes if one() is not None), ref(step)]

    @property
    def kept_nbytes(self) -> int:
        """Bytes of the activations of all passes that stay by their plans."""
        alive = (one() for one in self._passes)
        return sum(step.kept_nbytes for step in alive if step is not None)

    def may_keep(self, nbytes: int) -> bool:
        """Return whether an activation may stay, as its plan says, beside those of other passes."""
        budget = self._settings.budget
        return budget is None or self.kept_nbytes + nbytes <= budget - self.window

    def room_to_read(self, kept: int, busy: int) -> int:
        """Return the bytes that may be read ahead in backward.

        ``kept`` bytes stay in memory by the plan. ``busy`` bytes are in use, or still wait for their write.
        """
        if self.policy == "fastensor":
            return 0
        return self.window if self._settings.budget is None else self._settings.budget - kept - busy

    def prepare(self) -> None:
        """Plan the profiled passes that are not planned. Raises InfeasibleBudget."""
        for profile in self._profiles.values():
            if profile is None or profile.planned or not profile.timed:
                continue
            if profile.history.bandwidth if self.policy == "all" else self.policy not in UNPLANNED:
                profile.plan(self._settings, self.window)

    def profile_for(self, first: SavedRecord) -> Profile | None:
        """Return the profile that a pass with this first activation follows; None if the pass is to be profiled."""
        key = (first.nbytes, first.dtype)
        if key in self._profiles:
            self._profiles.move_to_end(key)
        return self._profiles.get(key)

    def record(
        self, trace: Trace, profile: Profile | None, diverged: bool, accelerated: bool = False
    ) -> Profile | None:
        """Record a forward pass that ended: remember it if it was profiled, forget a profile that it did not follow.

        On an accelerator (``accelerated``) the first pass of a shape is not profiled: libraries are loaded, kernels
        chosen and memory is pinned in it. The second one measures transfers, and waits for them. The third one measures
        compute, and does not wait. Returns the profile that the pass made or followed.
        """
        if not trace.saved:
            return None
        first = trace.saved[0]
        if self.least is None and accelerated and self.policy != "fastensor":
            self.least = least = least_worth_moving((saved.nbytes for saved in trace.saved), self._settings.budget)
            first = next((saved for saved in trace.saved if saved.nbytes >= least), first)  # of the passes to come
        key = (first.nbytes, first.dtype)
        made = Profile(trace, timed=not accelerated or self.policy == "fastensor")
        if profile is None:
            warmed_up = not accelerated or key in self._profiles
            return self._remember(key, trace, made if warmed_up else None)
        if diverged or len(trace.saved) != len(profile.trace.saved):
            return self._remember(key, trace, made if self.policy in UNPLANNED else None)
        self.latest = profile
        if not profile.trace.uses:  # its backward never ran; this pass's may have
            profile.trace.uses, profile.trace.used_s = trace.uses, trace.used_s
        return profile

    def warn_of_excess(self, trace: Trace) -> None:
        """Warn once if one operator saved more than the budget: no plan can keep it then.

        A budget of 0 means as little memory as possible, and never warns.
        """
        budget, need = self._settings.budget, trace.working_set
        if budget and need > budget and not self._warned:
            self._warned = True
            warnings.warn(
                f"budget is {budget} bytes, and the tensors that one operator saved, which backward needs at once, "
                f"have {need}: backward will take more than the budget. Make it larger or the batch smaller",
                UserWarning,
                stacklevel=3,  # the code around the with statement
            )

    def _remember(self, key: Key, trace: Trace, profile: Profile | None) -> Profile | None:
        self._profiles[key] = profile
        self._profiles.move_to_end(key)
        if len(self._profiles) > _REMEMBERED:
            self._profiles.popitem(last=False)
        if self._settings.budget is None:  # a pass would wait for an activation larger than the window
            self.window = max(self.window, 2 * max(saved.nbytes for saved in trace.saved))
        if profile is not None:
            self.latest = profile
            if self.policy in UNPLANNED:
                profile.move_all(self._settings)
        return profile
