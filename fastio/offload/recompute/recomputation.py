"""What an Offload needs to recompute saved tensors: records operators, tries what can be recomputed, follows the plan.

Used only if the policy can recompute: "optimal", or a policy of operators. Under "optimal" the pass that
is profiled moves everything, and its backward computes each tensor again, too, where that is possible: what gave the
same bits may be recomputed in later passes, and takes the time that was measured.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fastio.errors import FastIOError
from fastio.offload.autograd.buffer import flat_bytes
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.saved_tensor import SavedTensor
from fastio.offload.autograd.trace import HOST, RECOMPUTED, Maker, OperatorCall
from fastio.offload.planning.profile import Placement
from fastio.offload.planning.step import RecomputeOption
from fastio.offload.recompute.operator_policy import OFFLOAD, RECOMPUTE, OperatorPolicy
from fastio.offload.recompute.recipe import Materialize, Recipe, recipe_of
from fastio.offload.recompute.recorder import Recorder
from fastio.offload.recompute.tier import RecomputeTier
from fastio.offload.stores.tiers import ActivationLostError, Loaded

if TYPE_CHECKING:
    from fastio.offload.saved_tensors import SavedTensors

_DEEPEST = 8  # recomputations that one use may take under a policy of operators

_RUNS = 3  # the first one may load kernels, and the machine may be busy in another

Pack = Callable[[torch.Tensor], Kept | Handle]


class Recomputation:
    """The part of an Offload that recomputes. The manager holds its lock around every call, except where noted."""

    def __init__(self, manager: SavedTensors, loaded: Loaded, policy: OperatorPolicy | None) -> None:
        self._policy = policy
        self._manager = weakref.ref(manager)
        self._materialize: weakref.WeakMethod[Materialize] = weakref.WeakMethod(manager._materialize)
        self._tier = RecomputeTier(self._materialize, manager._releases, manager.counts, loaded)
        self._threads = threading.local()  # a recorder each: passes run in several

    @property
    def _recorder(self) -> Recorder:
        found: Recorder | None = getattr(self._threads, "recorder", None)
        if found is None:
            found = self._threads.recorder = Recorder(self._before_write)
            found.judge = None if self._policy is None else self._policy.judge
        return found

    def begin_pass(self, pack: Pack) -> Pack:
        """Begin to record, in this thread, without the lock. Return a hook that is not recorded."""
        recorder = self._recorder

        @functools.wraps(pack)  # other hooks' warnings name it
        def unrecorded(tensor: torch.Tensor) -> Kept | Handle:
            recorder.pause()
            try:
                return pack(tensor)
            finally:
                recorder.resume()

        recorder.install()
        return unrecorded

    def end_pass(self) -> None:
        """End that, also after an exception. May be called again. Without the lock."""
        self._recorder.remove()

    def place(self, step: ForwardPass, saved: SavedTensor, placement: Placement) -> Placement:
        """Return where a new saved tensor goes. Drops it if it is to be recomputed.

        Raises RuntimeError if a policy of operators demands what is impossible.
        """
        if self._policy is not None:
            return self._place_by_policy(self._policy, step, saved, placement)
        if step.is_profiled:
            if not step.warms_up:
                self._note_candidate(step, saved)
            return placement
        if self._recorder.wanted is None:
            self._recorder.wanted = step.recomputing_calls
        if placement.tier != RECOMPUTED:
            return placement
        recipe = recipe_of(saved, step, self._recorder)
        if isinstance(recipe, str):  # the program does something else now
            return Placement(True)
        self._tier.move_out(saved, recipe)
        return placement

    def try_(self, saved: SavedTensor, storage: torch.UntypedStorage, shift: int) -> None:
        """In the backward of a profiled pass: recompute a saved tensor, and compare with its bytes in a storage."""
        recipe, materialize = saved.recipe, self._materialize()
        if recipe is None or saved.tier is self._tier or materialize is None:
            return
        seconds, trial_s = tried(saved, recipe, materialize, storage, shift)
        if seconds is not None:
            sources = tuple(source.ordinal for source in recipe.sources)
            saved.step.trace.recomputable[saved.ordinal] = RecomputeOption(seconds, sources)
        self._tier.release(saved)
        saved.step.record_trial(trial_s)

    def _before_write(self, storage: int) -> None:
        """Keep what is made from a storage that an operator is about to write to. Without the lock."""
        manager = self._manager()
        if storage not in self._tier.readers or manager is None:
            return
        with manager._lock:
            for index in list(self._tier.readers.get(storage, ())):
                saved = manager._saved_tensors.get(index)
                if saved is not None and saved.tier is self._tier:
                    self._tier.keep(saved)

    def _note_candidate(self, step: ForwardPass, saved: SavedTensor) -> None:
        made = self._recorder.made(saved.key)
        if made is None:
            return
        recipe = recipe_of(saved, step, self._recorder)
        calls = recipe.calls if isinstance(recipe, Recipe) else ()
        repeated = frozenset(OperatorCall(call.func, call.number) for call in calls)
        step.trace.makers[saved.ordinal] = Maker(OperatorCall(made[0].func, made[0].number), repeated)
        if isinstance(recipe, Recipe):
            saved.recipe = recipe
            recipe.hold(self._tier.releases)

    def _place_by_policy(
        self, policy: OperatorPolicy, step: ForwardPass, saved: SavedTensor, placement: Placement
    ) -> Placement:
        made = self._recorder.made(saved.key)
        verdict = None if made is None else made[2]
        if verdict in OFFLOAD:
            step.keep(saved, False)
            return placement._replace(moves=True, tier=HOST)
        if made is not None and verdict in RECOMPUTE:
            recipe = recipe_of(saved, step, self._recorder)
            if isinstance(recipe, Recipe) and recipe.depth > _DEEPEST:
                recipe = f"it is made from a chain of more than {_DEEPEST} recomputed tensors"
            if isinstance(recipe, Recipe):
                step.keep(saved, False)
                self._tier.move_out(saved, recipe)
                return Placement(False, tier=RECOMPUTED)
            policy.refuse(made[0].func, verdict, recipe)
        step.keep(saved, True)
        return Placement(False)


def tried(
    saved: SavedTensor, recipe: Recipe, materialize: Materialize, storage: torch.UntypedStorage, shift: int
) -> tuple[float | None, float]:
    """Return the seconds that a recipe takes, and those of the trial, without reading what the recipe needs.

    None if it fails, or gives other bits than the storage has.

    Raises ActivationLostError if a tensor that it needs cannot be read back.
    """
    least = float("inf")
    began = time.perf_counter()
    try:
        sources = {source.index: materialize(source) for source in recipe.sources}
        began = time.perf_counter()
        for _ in range(_RUNS):
            seconds, made = _timed(saved, recipe, lambda source: sources[source.index])
            least = min(least, seconds)
            if made.nbytes() != saved.source_nbytes:
                return None, time.perf_counter() - began
            expected = flat_bytes(storage, saved.span.start + shift, saved.nbytes)
            if not torch.equal(flat_bytes(made, saved.span.start, saved.nbytes), expected):
                return None, time.perf_counter() - began
    except ActivationLostError:
        raise
    except (RuntimeError, FastIOError, MemoryError):  # a modified input, memory that is short, freed parameters
        return None, time.perf_counter() - began
    return least, time.perf_counter() - began


def _timed(saved: SavedTensor, recipe: Recipe, materialize: Materialize) -> tuple[float, torch.UntypedStorage]:
    accelerator = saved.accelerator
    if accelerator is None:
        began = time.perf_counter()
        made = recipe.run(materialize, saved.device)
        return time.perf_counter() - began, made
    accelerator.current_stream(saved.device).synchronize()
    origin = accelerator.timed_event(saved.device)
    made = recipe.run(materialize, saved.device)
    ended = accelerator.timed_event(saved.device)
    ended.synchronize()
    return float(origin.elapsed_time(ended)) / 1e3, made
