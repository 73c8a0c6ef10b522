"""Reads the tensors that backward needs next, as many as fit beside the others in memory."""

from __future__ import annotations

import torch

from fastio.errors import FastIOError
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.planning.planner import Planner
from fastio.offload.stores.tier_set import TierSet, tier_of

_READS_PER_USE = 2  # on an accelerator, which gets no kernels while the host begins reads
_FARTHEST = 64  # most uses to look ahead: more would not hide more


class ReadAhead:
    """Follows backward through the recorded order. The manager holds its lock around every call.

    The uses from the order's position to ``_end`` are in memory or on their way there, except those that another pass
    needed the room of. While backward keeps to the order, each use reads on from ``_end`` and unloads what was used; if
    it does not, everything is looked at again.
    """

    def __init__(self, planner: Planner, tiers: TierSet) -> None:
        self._planner = planner
        self._tiers = tiers
        self._in_use: dict[int, SavedTensor] = {}  # handed out, and not seen to be freed
        self._step: ForwardPass | None = None
        self._end = 0

    def begin_pass(self) -> None:
        """A forward pass begins, which unloads tensors."""
        self._step = None

    def forget(self, saved: SavedTensor) -> None:
        """The graph released a saved tensor."""
        self._in_use.pop(saved.index, None)

    def used(self, saved: SavedTensor, expected: bool) -> None:
        """Backward was given a saved tensor. ``expected``: as the order says."""
        step, order = saved.step, saved.step.order
        loaded = self._tiers.loaded
        if saved.tier is not None:
            self._in_use[saved.index] = saved
        assert order is not None, "a use sets it"
        room = self._room(step)
        taken = self._loaded_bytes()
        if not expected or step is not self._step or (taken and room < taken):
            self._step = step
            needed = self._needed(step, room)
            for other in loaded:
                # A buffer that is being read into must stay: the device writes to it.
                if other.state is State.RESIDENT and other.index not in needed:
                    tier_of(other).unload(other)
            self._end = order.position
            taken = self._loaded_bytes()
        elif saved.index in loaded.tensors and not order.is_used_before(
            saved.ordinal, max(self._end, order.position + 1)
        ):
            # The very next tensor stays, whatever the room: two nodes in a row often use the same one.
            tier_of(saved).unload(saved)
        self._read_on(step, room - taken)
        if self._tiers.disks:
            self._tiers.pump(self._held(step) if self._tiers.waiting_bytes else ())

    def _room(self, step: ForwardPass) -> int:
        """Return the bytes for tensors that are loaded and not in use.

        A tensor is in use until autograd frees it: its node may need more tensors.
        """
        in_use = 0
        for index, saved in list(self._in_use.items()):
            if not saved.is_in_use:
                del self._in_use[index]
            elif saved.state is not State.PENDING:
                in_use += saved.nbytes
        busy = self._tiers.waiting_bytes + in_use + step.recompute_room
        return self._planner.room_to_read(step.kept_nbytes, busy)

    def _loaded_bytes(self) -> int:
        """Return the bytes of tensors that are loaded and not in use."""
        loaded = self._tiers.loaded
        nbytes = loaded.nbytes
        for index, saved in self._in_use.items():
            if index in loaded.tensors:
                nbytes -= saved.nbytes
        return nbytes

    def _needed(self, step: ForwardPass, room: int) -> set[int]:
        """Return the indices of the next tensors: of as many as fit ``room``, loaded or not."""
        order, loaded = step.order, self._tiers.loaded
        assert order is not None, "a use sets it"
        room -= sum(saved.nbytes for saved in loaded if saved.state is State.INFLIGHT)
        needed: set[int] = set()
        for ordinal in order.uses[order.position : order.position + _FARTHEST]:
            saved = step.saved_tensors.get(ordinal)
            if saved is None or saved.index in needed or saved.state is State.FAILED:
                continue
            if saved.index not in loaded.tensors and (saved.held or saved.is_in_memory):
                continue
            if saved.state is not State.INFLIGHT and saved.index not in self._in_use:
                room -= saved.nbytes
            if room < 0 and (needed or saved.index not in loaded.tensors):
                break
            needed.add(saved.index)
        return needed

    def _read_on(self, step: ForwardPass, room: int) -> None:
        """Begin to read the tensors that follow, within ``room`` bytes."""
        order = step.order
        assert order is not None, "a use sets it"
        end = min(len(order.uses), order.position + _FARTHEST)
        started = 0
        self._end = max(self._end, order.position)
        while self._end < end:
            saved = step.saved_tensors.get(order.uses[self._end])
            if saved is not None and saved.state is State.DISK and not saved.is_in_memory:
                if room < saved.nbytes or (started == _READS_PER_USE and saved.accelerator is not None):
                    break
                try:
                    tier_of(saved).fetch(saved)
                except (MemoryError, torch.OutOfMemoryError, FastIOError):
                    break  # memory is short now, or the device refuses: it is read when it is needed
                room -= saved.nbytes
                started += 1
            self._end += 1

    def _held(self, step: ForwardPass) -> set[int]:
        """Return the indices of the tensors that follow soon and whose write has not ended."""
        order = step.order
        assert order is not None, "a use sets it"
        followers = (step.saved_tensors.get(ordinal) for ordinal in order.uses[order.position : self._end])
        return {saved.index for saved in followers if saved is not None and saved.held}
