"""Offload: training with the tensors that autograd saves moved out of memory and back."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections import deque
from functools import partial
from types import TracebackType
from typing import Any

import torch

from fastio._native import DeferredWeakrefCallback
from fastio.offload.arguments import opened, parsed_bytes
from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.module_hooks import Modules
from fastio.offload.autograd.operators import Move, Unreturned, running
from fastio.offload.autograd.saved_tensor import HoldingTier, SavedTensor, SavingPass, State, Ticket, View
from fastio.offload.codecs.blob_encoding import pack, unpack
from fastio.offload.codecs.encoding import is_exact
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.schedule import Policy
from fastio.offload.report import Counts, Report, report
from fastio.offload.stores.tier_set import TierSet
from fastio.offload.stores.tiers import ActivationLostError

_PATIENCE = 1.0  # seconds
_SMALLEST = 4096  # bytes: less is not worth a block of the device


class Offload:
    """A context manager for the forward pass; backward may run inside or after it.

    ``store``: a folder, an empty block device, a list of such to stripe over, or an open store (see
    :class:`fastio.offload.stores.tiers.Store`). An NVMe namespace without the kernel in the way is "nvme:/dev/ng0n1"
    (the kernel's passthrough), "vfio:0000:03:00.0" (driven by this process) or "spdk:trtype=TCP traddr=..." (by SPDK):
    see ``fastio-bench doctor`` for what stands in the way. A device that is in use is never taken, nor one that holds a
    filesystem or a partition table, unless ``force`` is its serial number. ``budget``: bytes (or "8GiB") that saved
    tensors may take in memory. Backward needs all that one operator saved at once: where that is more, the budget is
    exceeded then, and a UserWarning says by how much. With 0 (for "all" and "fastensor") no tensor waits for its write
    and none is read ahead. ``host_budget``: bytes of host memory (pinned, for tensors on a GPU) for those that leave
    and come back soonest; the store has the rest.

    ``policy``: "all" moves every saved tensor, asynchronously; "fastensor" the same, waiting for each transfer, to
    compare with (into one folder it writes files, by the tools that WRDic chooses). The others of
    :func:`fastio.offload.planning.schedule.plan` (or a function as it takes) profile the first forward pass, in which
    everything is moved and waited for, plan, and then move what was selected; a forward pass of another shape is
    profiled anew. Without a budget flashneuron and optimal select as if nothing might stay; but what backward wants
    before it could be out and back stays then, under "all" too. The vDNN policies know a layer by the class of its
    module.

    ``codec``: what :func:`fastio.offload.codecs.encoding.encode` takes. "lossless" encodes in the profiled pass, and
    then only where the bytes as they are would not hide behind the forward pass (FlashNeuron's two phases). Those that
    round do not round integers, nor what looks like statistics (tensors of one dimension, or whose last has one
    element).

    Tensors of less than 4096 bytes, parameters (also cast or viewed), subclasses, nested tensors, tensors that are not
    strided and those of other devices than the CPU and CUDA's stay where they are. With an exact codec gradients are
    those of plain training, bit for bit. A tensor that was modified in place after it was saved raises RuntimeError in
    backward, as it does without, and so does one that backward itself wrote to and then wants again. What is written
    through ``.data`` or by other programs, which autograd does not see, may reach backward or not.

    On the CPU a tensor comes back with its shape, strides, storage offset and size of storage. Of a storage that is
    more than twice as large as what lies between the tensor's first and last element, those bytes alone come back;
    the others are zero. On a GPU such a tensor comes back on a smaller storage, at another offset.

    Where torch allows no saved-tensor hooks, it raises its RuntimeError: ``torch.func.grad``, ``vjp``, ``jacrev`` and
    ``hessian`` inside of the context or around it, ``torch.autograd.graph.disable_saved_tensors_hooks`` likewise.
    ``torch.func.linearize`` and ``make_fx``, which record operators, cannot record those of the context:
    NotImplementedError. ``jvp``, ``jacfwd``, ``vmap`` and ``functional_call`` work.

    On the CPU the memory of tensors that left is freed, which does not make the process smaller: glibc keeps blocks
    below 32 MiB unless the environment variable MALLOC_MMAP_THRESHOLD_ (1048576, say) tells it not to.

    Raises ValueError for places of several drivers and DeviceInUseError for a device that may not be taken;
    InfeasibleBudget on entering, where the policy cannot keep the budget, and ActivationLostError in backward,
    where a tensor cannot be read back; the manager then refuses to go on.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        store: Any,
        budget: int | str | None = None,
        host_budget: int | str = 0,
        policy: str | Policy = "flashneuron",
        codec: str = "lossless",
        force: str | None = None,
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module or None")
        is_exact(codec)  # raises ValueError for an unknown one
        self._codec = codec
        self.counts = Counts()
        self.failure: ActivationLostError | None = None
        host_bytes = parsed_bytes(host_budget, "host_budget") or 0
        self._planner = Planner(policy, parsed_bytes(budget, "budget"), host_bytes, optional_codec=codec == "lossless")
        self._levels = TierSet(*opened(store, policy, force), host_bytes, self.counts)
        self._lock = threading.Lock()
        self._departed: deque[Ticket] = deque()  # of handles that are gone
        self._bell = DeferredWeakrefCallback(self._departed.append, partial(_reap, weakref.ref(self), self._departed))
        self._blobs: dict[int, SavedTensor] = {}  # that graphs hold
        self._loaded: dict[int, SavedTensor] = {}  # blobs with a buffer: read, or on the way
        self._step: ForwardPass | None = None
        self._steps = 0
        self._unreturned = Unreturned()
        self._modules = Modules()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._levels.close)

    def __enter__(self) -> Offload:
        self.check()
        if self._step is not None:
            raise RuntimeError(
                "this Offload is in use already: one forward pass at a time; make another for another. After an "
                "interrupt (Ctrl-C) that came as the with statement ended, close it and make another"
            )
        if not self._finalizer.alive:
            raise RuntimeError("this Offload is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this Offload was made before a fork: make another in the child process")
        self._reap()
        self._planner.prepare()
        with self._lock:  # graphs that other threads let go of meanwhile change the queue
            self._levels.set_window(self._planner.window)
        self._steps += 1
        self._unreturned = Unreturned()
        step = ForwardPass(self._steps, self._planner)
        self.counts.iterations.append(step.iteration)
        try:
            self._step = step
            self._modules.watch(self._pack, hooks.unpack)
        except BaseException:
            self._leave()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        step = self._step
        self._leave()
        if step is not None and kind is None:
            with self._lock:
                for move in self._unreturned.take():
                    self._move_out(step, move)
                step.over()
                self._levels.pump()
            self._planner.warn_of_excess(step.trace)
        self._reap()

    def _leave(self) -> None:
        self._step = None
        self._modules.unwatch()

    def check(self) -> None:
        """Raise the error that made gradients incomplete, if there was one: to be asked before ``optimizer.step``."""
        if self.failure is not None:
            raise ActivationLostError(f"an earlier backward pass failed: {self.failure}") from self.failure

    def report(self) -> Report:
        """What was planned for the latest forward pass, and what has happened since the manager was made.

        A signal's handler that asks in the midst of this thread's own work is answered as well, a second later.
        """
        for _ in iter(partial(self._lock.acquire, timeout=_PATIENCE), False):  # as in _reap
            try:
                return report(self._planner, self.counts, self._levels.store)
            finally:
                self._lock.release()
        return report(self._planner, self.counts, self._levels.store)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the report's timelines, the actual and the predicted one: see :func:`fastio.offload.plot.draw`."""
        from fastio.offload.plot import draw

        draw(self.report(), path)

    @property
    def blobs_alive(self) -> int:
        """How many blobs graphs still hold."""
        self._reap()
        return len(self._blobs)

    def close(self) -> None:
        """Wait for what is under way and give the store back. Graphs that are still alive cannot be run any more.

        Ends a forward pass whose ``__exit__`` was interrupted before its first line (no Python code can prevent that).
        """
        if self._modules.thread == threading.get_ident():  # another thread cannot end it
            self._leave()
        with self._lock:
            if self._finalizer.alive:
                self._levels.close()  # interrupted, the next call does the rest
                self._finalizer.detach()

    def restore(self, handle: Handle) -> torch.Tensor:
        """The saved tensor again (what a handle asks for)."""
        blob = handle.blob
        with self._lock:
            self._reap_locked()
            self.check()
            step = blob.step
            step.used(blob.ordinal)
            tensor = handle.view.on(*self._bring(blob), blob.unpacked)
            step.served()
            self._look_ahead(step)
        self._reap()
        return tensor

    def _pack(self, tensor: torch.Tensor) -> Kept | Handle:
        step = self._step
        # Inside a running backward (checkpoint's recomputation, double backward) a tensor is used at once or kept.
        if step is None or torch._C._current_graph_task_id() != -1:
            return Kept(tensor)
        if not hooks.is_takeable(tensor) or hooks.is_parameter(tensor):
            self.counts.passed_through += 1
            return Kept(tensor)
        view = View.of(tensor)
        if view.touched().nbytes < _SMALLEST:
            self.counts.passed_through += 1
            return Kept(tensor)
        operator = running()
        with self._lock:
            self._reap_locked()
            for move in self._unreturned.take(operator):
                self._move_out(step, move)
            blob, new = step.blob_of(tensor, view, self._modules.innermost)
            handle = Handle(self, blob, view, tensor)
            blob.tickets.add(Ticket(handle, self._bell, blob))
            self._blobs[blob.index] = blob
            step.saved_by(operator, blob)
            if new and (choice := step.decide()).moves:
                encodes = step.packs(self._codec)
                self._unreturned.add(operator, Move(blob, view, choice.waits, choice.tier, encodes))
        self._reap()
        return handle

    def _move_out(self, step: ForwardPass, move: Move) -> None:
        blob = move.blob
        if blob.index not in self._blobs:
            return  # backward, inside of the context, was faster
        began = time.perf_counter()
        if move.encodes:
            if pack(blob, move.view, self._codec):
                self.counts.encoded += 1
                self.counts.spared_bytes += blob.nbytes - blob.stored_nbytes
            step.packed(blob.ordinal, blob.nbytes / blob.stored_nbytes, time.perf_counter() - began)
        tier = self._levels.choose(blob.device, blob.stored_nbytes, move.tier)
        tier.take(blob, move.waits)
        step.waited(blob.ordinal, time.perf_counter() - began, tier.name)

    def _bring(self, blob: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        """A storage with the blob's bytes, and how far they are moved in it. The lock is held."""
        if blob.state is State.FAILED or not self._finalizer.alive:
            raise ActivationLostError(f"saved tensor {blob.ordinal} of forward pass {blob.step.number} is gone")
        if blob.tier is not None:
            blob.tier.cancel(blob)
        found = self._at_hand(blob)
        if found is not None:
            self.counts.handed_back += 1
            return found
        try:
            if blob.state is State.DISK:
                self._fetch(blob)
            _tier_of(blob).finish(blob)
        except ActivationLostError as error:
            self.failure = ActivationLostError(str(error))  # the error itself has frames, and they hold the graph
            raise
        found = blob.at_hand()
        assert found is not None, "a blob that was read is at hand"
        return found

    def _at_hand(self, blob: SavedTensor) -> tuple[torch.UntypedStorage, int] | None:
        found = blob.at_hand()
        if found is None and blob.payload is not None and blob.encoded is not None:
            return blob.handing(unpack(blob, blob.payload))
        return found

    def _fetch(self, blob: SavedTensor) -> None:
        _tier_of(blob).fetch(blob)
        self._loaded[blob.index] = blob

    def _look_ahead(self, step: SavingPass) -> None:
        """Read what comes next, as far as the window reaches, and let go of what is loaded and does not come soon."""
        coming = self._within_window(step)
        wanted = {blob.index for blob in coming}
        for blob in list(self._loaded.values()):
            # What is on the way cannot be let go of: the device writes there.
            if blob.index not in wanted and blob.state is State.RESIDENT:
                _tier_of(blob).unload(blob)
                del self._loaded[blob.index]
        # Memory that is wanted now may be short of what is wanted soon: then it is read when it is asked for.
        with contextlib.suppress(MemoryError, torch.OutOfMemoryError):
            for blob in coming:
                if blob.state is State.DISK:
                    self._fetch(blob)
        self._levels.pump()

    def _within_window(self, step: SavingPass) -> list[SavedTensor]:
        """The blobs that come next and have, or need, a buffer: as many as fit beside those that are on the way."""
        coming: list[SavedTensor] = []
        if step.order is None:
            return coming
        room = self._planner.ahead - sum(blob.nbytes for blob in self._loaded.values() if blob.state is State.INFLIGHT)
        for ordinal in step.order.coming():
            blob = step.blobs.get(ordinal)
            if blob is None or blob.held or blob.state is State.FAILED:
                continue
            if blob.state is State.DISK and blob.at_hand() is not None:
                continue
            if blob.state is not State.INFLIGHT:
                room -= blob.nbytes
            # What is loaded and wanted next of all stays, whatever the room: two nodes in a row often use the same.
            if room < 0 and (coming or blob.index not in self._loaded):
                break
            coming.append(blob)
        return coming

    def _reap(self) -> None:
        if not self._departed or os.getpid() != self._process:  # a child's graphs are the parent's
            return
        # With `while ... acquire()` an interrupt between that and `try` left the lock taken for ever. Where an iterator
        # takes it, none comes in between, as with `with`: Python heeds signals after calls that it makes itself.
        for _ in iter(partial(self._lock.acquire, False), False):
            try:
                self._reap_locked()
            finally:
                self._lock.release()
            if not self._departed:
                return

    def _reap_locked(self) -> None:
        """Let go of what graphs have let go of. Interrupted, it is begun again: each part may be done twice."""
        while self._departed:
            ticket = self._departed[0]
            try:
                self._let_go(ticket)
            except Exception:
                self._departed.popleft()  # raised once
                raise
            self._departed.popleft()

    def _let_go(self, ticket: Ticket) -> None:
        blob = ticket.blob
        blob.tickets.discard(ticket)
        if blob.tickets:
            return
        blob.step.forget(blob)
        self._loaded.pop(blob.index, None)
        if blob.tier is None:
            blob.let_go()
        elif self._finalizer.alive:
            blob.tier.drop(blob)
        self._blobs.pop(blob.index, None)


def _tier_of(blob: SavedTensor) -> HoldingTier:
    assert blob.tier is not None, "bytes that are not in memory are in a tier"
    return blob.tier


def _reap(manager: weakref.ref[Offload], departed: deque[Ticket]) -> None:
    """Have a manager let go of what graphs have; the handles of one that is gone hold nothing any more."""
    alive = manager()
    if alive is None:
        departed.clear()
        return
    for _ in range(len(departed)):
        try:
            alive._reap()
        except Exception as error:  # with which whatever runs just now has nothing to do
            warnings.warn(f"the store could not let go of a saved tensor: {error}", RuntimeWarning, stacklevel=1)
