"""Brings saved tensors back as vDNN does (section III-B): beside the layer before, and no sooner.

When a layer's backward begins, all that the layer before it prefetched is waited for; then the next prefetch is issued.
"""

from __future__ import annotations

import contextlib

from fastio.errors import FastIOError
from fastio.offload.autograd.read_ahead import fetched_ahead
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.planning.planner import Planner
from fastio.offload.stores.tier_set import TierSet, tier_of


class LayerPrefetch:
    """In the place of :class:`fastio.offload.autograd.read_ahead.ReadAhead` under vDNN's policies.

    A pass whose layers are not known, or whose backward is not as recorded, reads what it needs when it needs it. The
    manager holds its lock around every call.
    """

    def __init__(self, planner: Planner, tiers: TierSet) -> None:
        self._planner = planner
        self._tiers = tiers
        self._pending: list[SavedTensor] = []  # what the layer before prefetched

    def begin_pass(self) -> None:
        """A forward pass begins."""
        self._pending = []

    def forget(self, saved: SavedTensor) -> None:
        """The graph released a saved tensor."""
        if saved in self._pending:
            self._pending = [one for one in self._pending if one is not saved]

    def used(self, saved: SavedTensor, expected: bool) -> None:
        """Backward was given a saved tensor. ``expected``: as the order says."""
        step, order = saved.step, saved.step.order
        assert order is not None, "a use sets it"
        if (
            saved.tier is not None
            and saved in self._tiers.loaded
            and saved.state is State.RESIDENT
            and not order.comes_before(saved.ordinal, len(order.uses))
        ):
            saved.tier.unload(saved)  # autograd has it; no layer before needs it
        due = step.prefetching.begin(order.position - 1) if step.prefetching is not None and expected else None
        if due is not None:
            self._synchronize()
            self._fetch([one for one in map(step.saved_tensors.get, due) if one is not None])
        self._tiers.pump(())

    def _synchronize(self) -> None:
        """Let what is queued next on the current streams follow what was prefetched."""
        pending, self._pending = self._pending, []
        for saved in pending:
            if saved.state is State.INFLIGHT:
                with contextlib.suppress(FastIOError):  # raised when it is needed
                    tier_of(saved).bring(saved)
            if saved.ready is not None and saved.accelerator is not None:
                saved.ready.precede(saved.accelerator.current_stream(saved.device))

    def _fetch(self, several: list[SavedTensor]) -> None:
        for saved in several:
            is_out = saved.state is State.DISK and not saved.is_in_memory
            if is_out and fetched_ahead(self._planner, tier_of(saved), saved):
                self._pending.append(saved)
