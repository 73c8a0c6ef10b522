"""The profiles of a manager: which one a forward pass follows, and when they are planned (FlashNeuron, section 3.1).

Sizes are bytes.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING
from weakref import ref

import torch

from fastio.errors import kind_of
from fastio.offload.autograd.trace import SavedRecord, Trace
from fastio.offload.planning.profile import BY_LAYER, UNPLANNED, Profile, Settings
from fastio.offload.planning.schedule import POLICIES, Policy, policy_name
from fastio.offload.planning.tiering import least_worth_moving
from fastio.offload.planning.trials import Trials
from fastio.sizes import format_size

if TYPE_CHECKING:
    from fastio.offload.autograd.forward_pass import ForwardPass
    from fastio.offload.device_memory import DeviceMemory

_WINDOW = 24 << 20  # least bytes that wait for their write, and bytes read ahead, without a budget

_STATIC = ("vdnn-all", "vdnn-conv")  # they move what they move, whatever the budget
_BY_BACKWARD = ("optimal", *BY_LAYER)  # a plan needs what backward tells of the saved tensors

_REMEMBERED = 32  # profiles, of some 45 KB each; the least recently used are forgotten

Key = tuple[int, torch.dtype]


class Planner:
    """Keeps a profile per size and dtype of a pass's first activation, so that a smaller last batch has its own.

    Without a budget, each profile gets the one that fits the ``memory`` of the device.
    """

    def __init__(
        self,
        policy: str | Policy,
        budget: int | None,
        host_budget: int,
        optional_codec: bool,
        memory: DeviceMemory,
        strict_paper: bool = False,
        title: str = "",
    ) -> None:
        if isinstance(policy, str) and policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: expected one of {', '.join(POLICIES)}, or a function")
        if not isinstance(policy, str) and not callable(policy):
            raise TypeError(f"policy is {kind_of(policy)}: expected a name or a function")
        self.policy = policy
        self.title = title or policy_name(policy)  # in reports
        if strict_paper and policy != "flashneuron":
            raise ValueError(f"strict_paper is for policy 'flashneuron', not {self.title!r}: leave one of them out")
        self._settings = Settings(policy, budget, host_budget, optional_codec, strict_paper)
        self._memory = memory
        self.profiling_waited_s = 0.0  # seconds that profiled passes waited for transfers
        self.tightened = 0  # times that memory ran out and a budget was halved
        self.retried = 0  # times that memory ran out and another pass of "vdnn-dyn" is tried
        self._current: Profile | None = None  # that the latest pass follows
        self._measured: Profile | None = None  # whose peak is being measured
        self._profiles: OrderedDict[Key, Profile | None] = OrderedDict()  # least recently used first; None: warmed up
        self.latest: Profile | None = None
        self.least: int | None = None  # bytes: smaller activations on an accelerator stay; None: not known yet
        # Of all threads, and those whose graphs live on. No WeakSet: an interrupt in its callbacks would be lost.
        self._passes: list[ref[ForwardPass]] = []
        self._warned = self._warned_of_nothing = False
        self._least_window = _WINDOW  # without a budget
        # Whether the bytes in transfer are limited to those that are of use, not to a part of the budget.
        self._keeps_window = budget is None and policy in UNPLANNED
        self.kept_nbytes = 0  # of the activations of all passes that stay by their plans
        # Bytes of memory for the saved tensors of the latest pass; None if nothing limits them.
        self.budget: int | None = None
        # Bytes that may wait for their write at a time. Activations that stay and activations in transfer share the
        # budget. Where all move, transfers have all of it: a budget of two of the largest activation lets one be
        # transferred while the other is computed or used.
        self.window = 0
        self._set_limits()

    @property
    def given_budget(self) -> int | None:
        return self._settings.budget

    @property
    def is_on_cpu(self) -> bool:
        """Whether the saved tensors of the latest pass are in host memory."""
        return not self._memory.is_accelerated

    @property
    def transit(self) -> int:
        """Bytes that may be written and read at a time: a window of each, but within the budget."""
        budget = self.budget
        return 2 * self.window if budget is None else min(2 * self.window, budget)

    def add_pass(self, step: ForwardPass) -> None:
        """Add a forward pass, which shares the budget with the others."""
        self._passes = [*(one for one in self._passes if one() is not None), ref(step)]

    def may_keep(self, nbytes: int) -> bool:
        """Return whether an activation may stay, as its plan says, beside those of other passes."""
        budget = self.budget
        return budget is None or self.kept_nbytes + nbytes <= budget - self.window

    def room_to_read(self, kept: int, busy: int) -> int:
        """Return the bytes that may be read ahead in backward.

        ``kept`` bytes stay in memory by the plan. ``busy`` bytes are in use, or still wait for their write.
        """
        budget = self.budget
        if self.policy == "fastensor" or (self.policy == "optimal" and self._current is None):
            return 0  # reads are waited for, so that their time is measured
        if budget is None:
            return 0 if self._measures else self.window
        return min(self.window, budget - kept - busy) if self._keeps_window else budget - kept - busy

    def prepare(self, released_bytes: int = 0) -> None:
        """Plan the profiled passes that are not planned. Raises InfeasibleBudget.

        ``released_bytes``: of what graphs have released, what transfers still keep in memory.
        """
        alive = (one() for one in self._passes)
        self.kept_nbytes = sum(step.kept_nbytes for step in alive if step is not None)  # interrupts may miscount
        try:
            self._look_at_memory(released_bytes)
            for profile in self._profiles.values():
                if profile is not None:
                    self._plan(profile)
        finally:
            self._set_limits()

    def _plan(self, profile: Profile) -> None:
        if profile.trials is not None and profile.trials.answer():
            profile.planned = False
        if self.policy == "optimal":
            profile.correct_times()
        if profile.planned or not profile.timed:
            profile.divide_again(self._settings)
        elif not self._is_untried(profile) and (
            profile.history.bandwidth if self.policy == "all" else self.policy not in UNPLANNED
        ):
            profile.plan(self._settings_of(profile), self._window_of(profile))
            if self.policy in _STATIC and not profile.selected:
                self._warn_of_nothing()

    def is_new(self, first: SavedRecord) -> bool:
        return (first.nbytes, first.dtype) not in self._profiles

    def profile_for(self, first: SavedRecord, device: torch.device | None = None) -> Profile | None:
        """Return the profile that a pass with this first activation follows; None if the pass is to be profiled."""
        key = (first.nbytes, first.dtype)
        if key in self._profiles:
            self._profiles.move_to_end(key)
        profile = self._profiles.get(key)
        if profile is not None and self._is_untried(profile):
            profile = None
        self._current = profile
        if device is not None:
            self._memory.follow(device)
            if profile is None:
                self._measured = None
                if self._fits:
                    self._memory.measure()
        self._set_limits()
        return profile

    def tighten(self) -> None:
        """Memory ran out in the latest pass: halve the budget of the passes like it, if that is possible.

        It is not in a pass that is profiled, whose saved tensors all leave at once.
        """
        self.answer_out_of_memory()
        self._halve()

    def _halve(self) -> None:
        profile, budget = self._current, self.budget
        if profile is None or not profile.timed:
            return
        if profile.trials is not None and profile.placements:
            profile.planned = False
            self.retried += profile.trials.failed()
        elif budget:
            self.tightened += 1
            profile.room.most = min(budget, sum(saved.nbytes for saved in profile.trace.saved)) // 2
            profile.planned = False
            self._set_limits()

    def advice(self) -> str:
        """Return how a step ran again if memory runs out in it, and a cure."""
        profile, budget = self._current, self.budget
        if profile is not None and profile.trials is not None:
            return "by each of vDNN's passes, down to the one with the least memory: use a smaller batch"
        tried = "" if budget is None else f" ({format_size(budget)})"
        if profile is None or budget is None or budget // 2 < profile.trace.working_set:
            cure = "little of it is saved tensors; use a smaller batch"
        elif self.given_budget is None:
            cure = "saved tensors may still have that much of it; give budget=, and less than that"
        else:
            cure = "saved tensors may still have that much of it; give Offload a smaller budget=, or none"
        return f"twice, the second time with a smaller budget{tried}, and memory ran out again: {cure}"

    def advice_after_one_run(self) -> str:
        """Return why a step that has least memory for saved tensors does not run again, and a cure; else nothing."""
        profile = self._current
        profiled = profile is None or not profile.timed
        least = profile is not None and profile.trials is None and self.budget == 0
        if self.policy in UNPLANNED or not (profiled or least):
            return ""
        why = "in its pass, which is profiled," if profiled else "with its budget of 0"
        return (
            f"\nOffload.step did not run this step again: {why} all saved tensors that can move leave already; use a "
            "smaller batch"
        )

    def answer_out_of_memory(self) -> None:
        """Memory ran out, and that was answered: the next pass does not ask what to do about it."""
        self._memory.answer()

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
        made.trials = Trials() if self._tries else None
        if profile is None:
            warmed_up = not accelerated or key in self._profiles
            return self._remember(key, trace, made if warmed_up else None)
        if diverged or len(trace.saved) != len(profile.trace.saved):
            return self._remember(key, trace, made if self.policy in UNPLANNED else None)
        self.latest = profile
        if not profile.trace.uses:  # its backward never ran; this pass's may have
            profile.trace.uses, profile.trace.used_s = trace.uses, trace.used_s
        return profile

    def backward_ended(self, profile: Profile) -> None:
        """The backward of a pass with this profile ended: on the CPU the memory that the measured one took counts."""
        if profile is self._measured and self.is_on_cpu:
            profile.room.backward = self._memory.risen()

    def warn_of_excess(self, trace: Trace) -> None:
        """Warn once if one operator saved more than the budget: no plan can keep it then.

        A budget of 0 means as little memory as possible, and never warns. If a single one exceeds the budget, there is
        no plan: InfeasibleBudget says so.
        """
        budget, need = self._settings.budget, trace.working_set
        if budget and need > budget and not self._warned:
            if self.policy not in UNPLANNED and max(saved.nbytes for saved in trace.saved) > budget:
                return
            self._warned = True
            warnings.warn(
                f"budget is {budget} bytes, and the tensors that one operator saved, which backward needs at once, "
                f"have {need}: backward will take more than the budget. Make it larger or the batch smaller",
                UserWarning,
                stacklevel=4,  # the code around the with statement
            )

    def _is_untried(self, profile: Profile) -> bool:
        """Whether no backward has told yet what can be recomputed, or which operators saved what: profile it again."""
        return self.policy in _BY_BACKWARD and not profile.planned and not profile.trace.uses

    def _warn_of_nothing(self) -> None:
        if self._warned_of_nothing:
            return
        self._warned_of_nothing = True
        inputs = "the inputs of convolutions" if self.policy == "vdnn-conv" else "feature maps"
        warnings.warn(
            f"policy {self.policy!r} moves {inputs}, and this forward pass saves none: nothing is moved. Use policy "
            f"'flashneuron' or 'all'",
            UserWarning,
            stacklevel=5,  # the code around the with statement
        )

    def _remember(self, key: Key, trace: Trace, profile: Profile | None) -> Profile | None:
        self._profiles[key] = profile
        self._profiles.move_to_end(key)
        if len(self._profiles) > _REMEMBERED:
            self._profiles.popitem(last=False)
        # Without a budget, a pass would wait for an activation larger than the window.
        self._least_window = max(self._least_window, 2 * max(saved.nbytes for saved in trace.saved))
        if profile is not None:
            self.latest = self._measured = profile
            if self.policy in UNPLANNED:
                profile.move_all(self._settings)
        self._set_limits()
        return profile

    def _set_limits(self) -> None:
        self.budget, self.window = self.budget_of(self._current), self._window_of(self._current)

    @property
    def _fits(self) -> bool:
        """Whether budgets are chosen to fit the device. On the CPU, policies without a plan take little memory."""
        if self._settings.budget is not None or self._tries:
            return False
        return self._memory.is_accelerated or self.policy not in UNPLANNED

    @property
    def _tries(self) -> bool:
        """Whether passes are tried until one does not run out of memory."""
        return self.policy == "vdnn-dyn" and self._settings.budget is None

    @property
    def _measures(self) -> bool:
        """Whether the latest pass measures what else a step takes: nothing is read ahead then."""
        return self._fits and self._current is None

    def budget_of(self, profile: Profile | None) -> int | None:
        """Return the bytes of memory for the saved tensors of a profile's passes; None if nothing limits them."""
        budget = self._settings.budget
        if profile is None:
            return budget
        if profile.room.fit is not None:
            budget = profile.room.fit.budget
        most = profile.room.most
        return budget if most is None or budget is None else min(budget, most)

    def _window_of(self, profile: Profile | None) -> int:
        budget = self.budget_of(profile)
        if budget is None:
            return self._least_window
        part = budget if self.policy in UNPLANNED else budget // 4
        return part if self._settings.budget is not None else min(part, self._least_window)

    def _settings_of(self, profile: Profile) -> Settings:
        chosen = profile.room.fit is not None or profile.room.most is not None
        if not chosen or self.policy in UNPLANNED or self.policy in _STATIC:
            return self._settings
        return replace(self._settings, budget=self.budget_of(profile), fitted=True)

    def _look_at_memory(self, released_bytes: int) -> None:
        """Between two steps: measure what the last one took, and let plans be made anew where more is needed."""
        memory = self._memory
        if memory.has_run_out():  # in this or another Offload's step: no other one is kept from asking, too
            self._halve()
        if not self._fits:
            return
        allocated = memory.allocated() - released_bytes
        profile = self._measured
        if profile is not None:
            profile.room.peak = max(profile.room.peak, memory.peak())
            profile.room.base = allocated
            profile.planned = False
            if profile.history.has_ended:
                self._measured = None
        for profile in self._profiles.values():
            if profile is None:
                continue
            room = profile.room
            grown = allocated - room.base
            if room.fit is not None and grown > room.grown + room.fit.reserve // 2:
                room.grown, profile.planned = grown, False
            if not profile.planned:
                room.fit = memory.fit(room, profile.trace.working_set)
