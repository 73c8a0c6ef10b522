"""The saved tensors of an Offload: how each is packed, moved out, brought back and released. Sizes are bytes."""

from __future__ import annotations

import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from fastio._native import Releases
from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.layer_prefetch import LayerPrefetch
from fastio.offload.autograd.module_hooks import ModuleHooks
from fastio.offload.autograd.read_ahead import ReadAhead
from fastio.offload.autograd.saved_tensor import SavedTensor, State
from fastio.offload.autograd.thread_pass import PendingMove, ThreadPass
from fastio.offload.autograd.trace import DISK
from fastio.offload.autograd.views import view_of
from fastio.offload.codecs.device_numbers import Number
from fastio.offload.codecs.encoding import Codec, is_exact
from fastio.offload.codecs.saved_tensor_encoding import Packing, unpack
from fastio.offload.device_support import DeviceSupport
from fastio.offload.freed_blocks import FreedBlocks
from fastio.offload.out_of_memory import is_out_of_memory
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.profile import BY_LAYER, Placement
from fastio.offload.recompute.recomputation import Recomputation
from fastio.offload.report import Counts
from fastio.offload.stores.tier_set import TierSet, tier_of
from fastio.offload.stores.tiers import ActivationLostError
from fastio.runtime.uncompiled import uncompiled

_MIN_NBYTES = 4096  # smaller tensors are not worth a block of the device

_backward_task: Any = torch._C._current_graph_task_id  # of this thread; -1: no backward runs here
_sequence_number: Any = torch._C._autograd._get_sequence_nr  # see ThreadPass


class SavedTensors:
    """What the hooks call. One lock is held around all that graphs and passes of several threads share.

    ``failure``: the error that left gradients incomplete, if any.
    """

    def __init__(
        self,
        planner: Planner,
        tiers: TierSet,
        threads: ModuleHooks,
        codec: Codec,
        support: DeviceSupport,
        counts: Counts,
    ) -> None:
        self.counts = counts
        self.failure: ActivationLostError | None = None
        self._planner = planner
        self._tiers = tiers
        self._threads = threads
        self._codec = codec
        self._rounds = not is_exact(codec)
        self._support = support
        self._freed = FreedBlocks(planner.given_budget is not None)
        self._lock = threading.Lock()
        self._released: deque[SavedTensor] = deque()  # whose holds are gone
        self._releases = Releases(self._released.append, partial(_reap, weakref.ref(self), self._released))
        self._saved_tensors: dict[int, SavedTensor] = {}  # that graphs hold, by index
        self._unverified: deque[tuple[Number, str]] = deque()  # whether payloads are damaged, and whose they were
        by_layer = planner.policy in BY_LAYER
        self._ahead = LayerPrefetch(planner, tiers) if by_layer else ReadAhead(planner, tiers)
        self._recomputation: Recomputation | None = None
        self._process = os.getpid()

    def check(self) -> None:
        """Raise the error that left gradients incomplete, if any. Call it before ``optimizer.step``.

        Waits for what a GPU has to tell of the packed tensors that it has decoded.
        """
        if self._unverified and os.getpid() == self._process:
            with self._lock:
                self._verify(wait=True)
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            raise ActivationLostError(f"an earlier backward pass failed: {self.failure}") from self.failure

    @property
    def saved_tensors_alive(self) -> int:
        """The number of saved tensors that graphs still hold."""
        self._reap()
        return len(self._saved_tensors)

    def restore(self, handle: Handle) -> torch.Tensor:
        """Return the saved tensor of a handle."""
        saved = handle.saved
        step = saved.step
        with self._lock:
            if self._released:
                self._reap_locked()
            if self._unverified:
                self._verify()
            if self.failure is not None:
                self._raise_failure()
            if saved.recipe is not None:
                step.record_sources(saved)
            expected = step.record_use(saved.ordinal)
            found = self._materialize(saved)
            if saved.recipe is not None and self._recomputation is not None:
                self._recomputation.try_(saved, *found)
            tensor = saved.tensor(handle.view, *found)
            step.record_served()
            self._ahead.used(saved, expected)
        if self._released:
            self._reap()
        return tensor

    @uncompiled
    def _pack(self, here: ThreadPass, tensor: torch.Tensor) -> Kept | Handle:
        step = here.step
        # In a running backward (checkpoint's recomputation, double backward) a tensor is used at once, or kept.
        if step is None or _backward_task() != -1:
            return Kept(tensor)
        kind = hooks.kind_of(tensor)
        if not kind.offloadable or hooks.is_of_parameter(tensor, maker := hooks.maker_of(tensor)):
            self.counts.passed_through += 1
            return Kept(tensor)
        view, touched = view_of(
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), kind.conj, kind.neg
        )
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        # Of a large storage, a small view stays only if it is tiny: it keeps all of the storage.
        least = self._planner.least
        # A storage that is too small was freed (``resize_``), to be filled again before backward.
        if (
            touched.nbytes < _MIN_NBYTES
            or nbytes < touched.start + touched.nbytes
            or (least and kind.accelerator is not None and nbytes < least)
        ):
            self.counts.passed_through += 1
            return Kept(tensor)
        if kind.accelerator not in self._support.found:
            self._support.require(tensor.device)
        operator = _sequence_number()
        with self._lock:
            if self._released:
                self._reap_locked()
            returned: Sequence[PendingMove] = ()
            begins = operator != here.operator
            if begins:  # those before have returned
                here.operator = operator
                if here.moves_nbytes > step.batch_nbytes:
                    returned = here.take()
            saved, new = step.saved_tensor_of(tensor, kind, storage, nbytes, touched)
            handle = Handle(self._releases, saved, self, view, maker)
            self._saved_tensors[saved.index] = saved
            if not step.is_steady:
                step.saved_by(operator, saved)
            placement: Placement | None = None
            if new:
                if view.offset == 0 and touched.nbytes == nbytes:
                    saved.view = view
                placement = step.decide(self._codec)
                if self._recomputation is not None:
                    placement = self._recomputation.place(step, saved, placement)
                if placement.readers > 1:
                    saved.readers = placement.readers - 1
                    placement = None
            elif saved.readers:
                placement = step.is_read(saved)
            if placement is not None and placement.moves and saved.ordinal not in step.resized:
                if placement.readers and saved.stream is not None and maker is not None:
                    # An operator made it: it is copied beside the one that reads it now.
                    saved.computed = saved.stream.record_event()
                here.add((saved, view, placement))
            if returned:
                self._move_all_out(step, here, returned, step.batch_nbytes)
            if begins and step.algorithms is not None:
                step.algorithms.saved(saved.ordinal)
        if self._released:
            self._reap()
        return handle

    def _move_all_out(
        self, step: ForwardPass, here: ThreadPass, moves: Sequence[PendingMove], following: int | None = None
    ) -> None:
        """Begin to move tensors out. ``following`` bytes may come to memory before the next ones are moved.

        None: these are the last ones of the pass. Those that a device has not packed by then stay: backward needs them
        first, and the host does not wait for them. It does if they may be rounded, so that the gradients do not depend
        on how fast the device is.
        """
        planner = self._planner
        limit = planner.window
        if planner.budget is not None:
            limit -= max(following or 0, self._threads.waiting_nbytes)
        self._move_packed(step, here, limit, planner.window // 4)
        together: list[SavedTensor] = []
        tier = ""
        for move in moves:
            saved, _, placement = move
            if not self._may_leave(step, saved):
                continue
            alone = placement.encodes or placement.readers or not step.is_steady
            if together and (alone or placement.tier != tier or not saved.follows(together[0])):
                self._move_together(step, together, tier, limit)
                together = []
            if alone:
                self._move_out(step, here, move, limit)
            else:
                together.append(saved)
                tier = placement.tier
        if together:
            self._move_together(step, together, tier, limit)
        if following is None:
            if self._rounds:
                self._move_packed(step, here, limit, 0)
            for saved in here.take_packing():
                if saved.index in self._saved_tensors:
                    step.keep(saved, True)

    def _move_packed(self, step: ForwardPass, here: ThreadPass, limit: int, most: int) -> None:
        """Move out the tensors that are packed; wait for the oldest while they have more than ``most`` bytes."""
        while here.packing:
            packing = here.packing[0]
            saved = packing.saved
            is_there = saved.index in self._saved_tensors and saved.is_whole
            if is_there and not packing.advance(here.packing_nbytes > most):
                return
            here.remove_packed()
            if self._may_leave(step, saved):
                self._move_out(step, here, packing.move, limit, packing)

    def _may_leave(self, step: ForwardPass, saved: SavedTensor) -> bool:
        if saved.index not in self._saved_tensors:
            return False  # backward ran inside the context and released it
        if not saved.is_whole:
            self.counts.moved += 1
            return False  # it was freed, and is filled again before backward
        if saved.accelerator is None:
            self._freed.moved(saved.nbytes, step.number)
        return True

    def _move_together(self, step: ForwardPass, several: Sequence[SavedTensor], tier: str, limit: int) -> None:
        """Move tensors out between which nothing was computed, in a pass that measures no transfers."""
        began = time.perf_counter()
        self._tiers.move_out(several, tier, limit, False)
        step.record_moves_out(time.perf_counter() - began)

    def _move_out(
        self, step: ForwardPass, here: ThreadPass, move: PendingMove, limit: int, packed: Packing | None = None
    ) -> None:
        saved, _, (_, waits, encodes, tier, readers) = move
        if not step.is_steady:
            step.begin_move_out()
        began, packed_s = time.perf_counter(), 0.0
        if encodes:
            began_s = step.seconds(saved)
            saved.computed = None  # the payload comes later
            if packed is None:
                packed = Packing(move, self._codec)
                if not packed.advance(not step.is_steady):
                    here.add_packing(packed)
                    return
            if saved.encoded is not None:
                self.counts.encoded += 1
                self.counts.spared_bytes += saved.nbytes - saved.stored_nbytes
            packed_s = step.seconds(saved) - began_s
            step.record_encoding(saved.ordinal, saved.nbytes / saved.stored_nbytes, packed_s)
        else:
            step.trace.pack_s[saved.ordinal] = 0.0
        issued, issued_s = time.perf_counter(), step.seconds(saved)
        tier = self._tiers.move_out((saved,), tier, 0 if readers else limit, waits)
        ended = time.perf_counter()
        # A disk has no other clock than the host's.
        moved_s = ended - issued if tier == DISK else step.seconds(saved) - issued_s
        step.record_move_out(saved.ordinal, ended - began, packed_s + moved_s, tier)

    def _materialize(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        """Return a storage with the bytes, and their shift in it. The lock is held."""
        found = self._find(saved)
        if saved.damaged is not None:
            self._unverified.append((saved.damaged, _name(saved)))
            saved.damaged = None
        return found

    def _verify(self, wait: bool = False) -> None:
        """Take what devices have told of the payloads that they decoded; of all of them after a wait. Lock held."""
        while self._unverified and (wait or self._unverified[0][0].is_there):
            number, name = self._unverified[0]
            if number.value() and self.failure is None:
                self.failure = ActivationLostError(
                    f"the codec's payload of {name} was damaged at the store, which a GPU tells after it has used "
                    f"it: discard the gradients and the updates since that pass, repair the store, and make another "
                    f"Offload"
                )
            self._unverified.popleft()

    def _find(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        if saved.state is State.FAILED or self._tiers.is_closed:
            cause = (
                "it could not be read back before; discard the gradients and make another Offload"
                if saved.state is State.FAILED
                else "this Offload was closed before backward; close it after the last backward"
            )
            raise ActivationLostError(f"{_name(saved)} is gone: {cause}")
        if saved.state is not State.INFLIGHT:
            if saved.state is State.PENDING:
                tier_of(saved).cancel(saved)
            found = self._in_memory(saved)
            if found is not None:
                self.counts.handed_back += 1
                return found
        try:
            if not self._bring(saved):
                self._tiers.unload_all()
                tier_of(saved).bring(saved)
        except ActivationLostError as error:
            self.failure = ActivationLostError(str(error))  # a new error: the frames of this one hold the graph
            raise
        assert saved.buffer is not None, "the bytes were read just now"
        return saved.hand_out(saved.buffer)

    def _bring(self, saved: SavedTensor) -> bool:
        """Bring a tensor back. False if there is no memory for it: the error, whose frames hold tensors, is gone."""
        try:
            tier_of(saved).bring(saved)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            self._planner.answer_out_of_memory()
            return False
        return True

    def _in_memory(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int] | None:
        found = saved.in_memory()
        if found is None and saved.payload is not None and saved.encoded is not None:
            return saved.hand_out(unpack(saved, saved.payload))
        return found

    def _reap(self) -> None:
        if not self._released or os.getpid() != self._process:  # in a forked child the graphs are the parent's
            return
        # With `while ... acquire()`, an interrupt between that call and `try` left the lock held for ever. An iterator
        # acquires it without that gap: Python handles signals only after calls that it makes itself.
        for _ in iter(partial(self._lock.acquire, False), False):
            try:
                self._reap_locked()
            finally:
                self._lock.release()
            if not self._released:
                return

    def _reap_locked(self) -> None:
        """Release what graphs released. An interrupt restarts it, so each part may run twice."""
        while self._released:
            saved = self._released[0]
            try:
                self._release(saved)
            except Exception:
                self._released.popleft()  # raised once
                raise
            self._released.popleft()

    def _release(self, saved: SavedTensor) -> None:
        if saved.holds:
            return  # another tensor with these bytes was saved meanwhile
        if saved.recipe is not None:
            saved.recipe.holds.clear()
        saved.step.forget(saved)
        self._ahead.forget(saved)
        if saved.tier is None:
            saved.release_bytes()
        elif not self._tiers.is_closed:
            saved.tier.drop(saved)
        self._saved_tensors.pop(saved.index, None)


def _name(saved: SavedTensor) -> str:
    return f"saved tensor {saved.ordinal} of forward pass {saved.step.number}"


def _reap(manager: weakref.ref[SavedTensors], released: deque[SavedTensor]) -> None:
    """Let a manager release what its graphs released. If the manager is gone, its handles hold nothing."""
    alive = manager()
    if alive is None:
        released.clear()
        return
    for _ in range(len(released)):
        try:
            alive._reap()
        except Exception as error:  # not related to the code that runs now
            warnings.warn(f"the store could not free a saved tensor: {error}", RuntimeWarning, stacklevel=1)
