"""Reads the tensors that backward needs next, as many as fit beside the others in memory.

FlashNeuron's prefetch into memory that backward has freed (section 3.2).
"""

from __future__ import annotations

import itertools
import operator
from typing import Any

from fastio.errors import FastIOError
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.out_of_memory import is_out_of_memory
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.prefetch import Order
from fastio.offload.recompute.tier import RecomputeTier
from fastio.offload.stores.disk_tier import DiskTier
from fastio.offload.stores.host_tier import HostTier
from fastio.offload.stores.tier_set import TierSet, tier_of

_place: Any = operator.attrgetter("tier", "device")  # where a saved tensor's bytes are, and the device to read them to


class ReadAhead:
    """Follows backward through the recorded order. The manager holds its lock around every call.

    The uses from an order's position to its end in ``_ends`` are in memory or on their way there, except those that
    another pass needed the room of. While backward keeps to the order, each use reads on from the end and unloads what
    was used; if it does not, everything is looked at again. Passes of several threads, whose backward runs at the same
    time, each follow their own order, and share the room.
    """

    def __init__(self, planner: Planner, tiers: TierSet) -> None:
        self._planner = planner
        self._tiers = tiers
        self._in_use: dict[int, SavedTensor] = {}  # handed out, and not seen to be freed
        self._ends: dict[ForwardPass, int] = {}  # of the passes whose backward has begun
        self._used_nbytes = 0  # since the latest look at all of them

    def begin_pass(self) -> None:
        """A forward pass begins, which unloads tensors."""
        self._ends.clear()

    def forget(self, saved: SavedTensor) -> None:
        """The graph released a saved tensor."""
        self._in_use.pop(saved.index, None)

    def used(self, saved: SavedTensor, expected: bool) -> None:
        """Backward was given a saved tensor. ``expected``: as the order says."""
        step, order = saved.step, saved.step.order
        tiers, ends = self._tiers, self._ends
        if saved.tier is not None:
            self._in_use[saved.index] = saved
        assert order is not None, "a use sets it"
        if expected and len(ends) == 1 and step in ends and not tiers.disks:
            self._used_nbytes += saved.nbytes
            if self._used_nbytes < step.batch_nbytes // 2:  # what comes back together has room only once more is used
                self._unload_used(saved, step, order)
                return
        self._used_nbytes = 0
        room, taken = self._room()
        others = [other for other in ends if other is not step and not _is_over(other)] if len(ends) > 1 else []
        if not expected or step not in ends or (taken and room < taken):
            loaded = tiers.loaded
            needed = self._needed(step, room)
            if room >= taken:
                needed.update(saved.index for other in others for saved in self._followers(other))
            for other in loaded:
                # A buffer that is being read into must stay: the device writes to it.
                if other.state is State.RESIDENT and other.index not in needed:
                    tier_of(other).unload(other)
            ends[step] = order.position
            _, taken = self._room()
        else:
            self._unload_used(saved, step, order)
        free = room - taken
        if others:
            free = min(free, room // (len(others) + 1) - self._loaded_bytes(step))
        self._read_on(step, order, free - step.recompute_room, taken)
        if tiers.disks:
            tiers.pump(self._held(step) if tiers.waiting_bytes else ())

    def _unload_used(self, saved: SavedTensor, step: ForwardPass, order: Order) -> None:
        """Unload a saved tensor that backward was given, unless it is used again soon.

        The very next tensor stays, whatever the room: two nodes in a row often use the same one. So does one that would
        have to be recomputed.
        """
        if saved.index in self._tiers.loaded.tensors and saved.tier is not None:
            end = max(self._ends[step], order.position + 1) if saved.recipe is None else len(order.uses)
            if not order.comes_before(saved.ordinal, end):
                saved.tier.unload(saved)

    def _room(self) -> tuple[int, int]:
        """Return the bytes for tensors that are loaded and not in use, and the bytes that these have.

        A tensor is in use until autograd frees it: its node may need more tensors.
        """
        tiers, planner = self._tiers, self._planner
        loaded = tiers.loaded
        busy, taken = (tiers.waiting_bytes if tiers.disks else 0), loaded.nbytes
        for index, saved in list(self._in_use.items()):
            if not saved.is_in_use:
                del self._in_use[index]
                continue
            if saved.state is not State.PENDING:
                busy += saved.nbytes
            if index in loaded.tensors:
                taken -= saved.nbytes
        return planner.room_to_read(planner.kept_nbytes, busy), taken

    def _loaded_bytes(self, step: ForwardPass) -> int:
        """Return the bytes of the tensors of one pass that are loaded and not in use."""
        return sum(one.nbytes for one in self._tiers.loaded if one.step is step and one.index not in self._in_use)

    def _needed(self, step: ForwardPass, room: int) -> set[int]:
        """Return the indices of the next tensors: of as many as fit ``room``, loaded or not."""
        order, loaded = step.order, self._tiers.loaded
        assert order is not None, "a use sets it"
        room -= sum(saved.nbytes for saved in loaded if saved.state is State.INFLIGHT)
        needed: set[int] = set()
        for ordinal in itertools.islice(order.uses, order.position, None):
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

    def _read_on(self, step: ForwardPass, order: Order, room: int, taken: int) -> None:
        """Begin to read the tensors that follow, within ``room`` bytes. ``taken`` bytes are there or on their way.

        While a batch is there, it waits for the room of another one.
        """
        if room < step.batch_nbytes <= taken:
            return
        uses, saved_tensors = order.uses, step.saved_tensors
        at, count = max(self._ends[step], order.position), len(uses)
        due: dict[int, SavedTensor] = {}
        while at < count:
            saved = saved_tensors.get(uses[at])
            if saved is not None and saved.state is State.DISK and saved.index not in due and not saved.is_in_memory:
                if room < saved.nbytes:
                    break
                due[saved.index] = saved
                room -= saved.nbytes
            at += 1
        for (tier, _), several in itertools.groupby(due.values(), _place):
            if not fetched_ahead(self._planner, tier, *several):
                return
        self._ends[step] = at

    def _held(self, step: ForwardPass) -> set[int]:
        """Return the indices of the tensors that follow soon and whose write has not ended."""
        order = step.order
        assert order is not None, "a use sets it"
        return {
            saved.index
            for saved in self._tiers.waiting()
            if saved.step is step and saved.held and order.comes_before(saved.ordinal, self._ends[step])
        }

    def _followers(self, step: ForwardPass) -> list[SavedTensor]:
        """Return the tensors that a pass uses next, up to its end."""
        order = step.order
        assert order is not None, "a use sets it"
        followers = (step.saved_tensors.get(ordinal) for ordinal in order.uses[order.position : self._ends[step]])
        return [saved for saved in followers if saved is not None]


def fetched_ahead(planner: Planner, tier: DiskTier | HostTier | RecomputeTier, *several: SavedTensor) -> bool:
    """Begin to bring saved tensors of a tier back before they are needed.

    Return False if the device refuses, or memory is short: they are read when they are needed.
    """
    try:
        tier.fetch(*several)
    except FastIOError:
        return False
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        planner.answer_out_of_memory()
        return False
    return True


def _is_over(step: ForwardPass) -> bool:
    """Return whether backward has used all that the order of a pass says."""
    return step.order is None or step.order.position >= len(step.order.uses)
