"""The Offload context manager: moves the tensors that autograd saves out of memory and back."""

from __future__ import annotations

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
from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.module_hooks import ModuleHooks
from fastio.offload.autograd.operators import PendingMove, PendingMoves, current_operator
from fastio.offload.autograd.read_ahead import ReadAhead
from fastio.offload.autograd.saved_tensor import HandleRef, SavedTensor, State
from fastio.offload.autograd.views import View
from fastio.offload.codecs.encoding import is_exact
from fastio.offload.codecs.saved_tensor_encoding import pack, unpack
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.schedule import Policy
from fastio.offload.report import Counts, Report, report
from fastio.offload.stores.resolve_store import resolve_store
from fastio.offload.stores.tier_set import TierSet, tier_of
from fastio.offload.stores.tiers import ActivationLostError
from fastio.sizes import parse_size

_LOCK_TIMEOUT_S = 1.0  # seconds
_MIN_NBYTES = 4096  # smaller tensors are not worth a block of the device


class Offload:
    """A context manager for the forward pass. Backward may run inside or after it.

    ``store``: a folder, an empty block device, a list of them to stripe over, or an open store (see
    :class:`fastio.offload.stores.tiers.Store`). NVMe namespaces without the kernel's block layer: "nvme:/dev/ng0n1"
    (the kernel's passthrough), "vfio:0000:03:00.0" (driven by this process) or "spdk:trtype=TCP traddr=..." (by SPDK).
    ``fastio-bench doctor`` lists what prevents their use. A device in use is always refused. A device with a filesystem
    or a partition table is refused unless ``force`` is its serial number. ``budget``: bytes (or "8GiB") of memory for
    saved tensors. ``host_budget``: bytes of host memory (pinned for tensors on a GPU) for the tensors that come back
    soonest; the others go to the store. ``policy``: one of :data:`fastio.offload.planning.schedule.POLICIES`, or a
    function with the arguments of :func:`fastio.offload.planning.schedule.plan`. ``codec``: see
    :func:`fastio.offload.codecs.encoding.encode`.

    With an exact codec, gradients equal those of plain training bit for bit. ``docs/offload.md`` says which tensors
    move, what memory they take, and where torch does not allow it.

    Raises ValueError for places of several drivers, DeviceInUseError for a device that is refused, InfeasibleBudget on
    entering if the policy cannot keep the budget, and ActivationLostError in backward if a tensor cannot be read back.
    After that error the Offload cannot be used.
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
        host_bytes = parse_size(host_budget, "host_budget") or 0
        self._planner = Planner(policy, parse_size(budget, "budget"), host_bytes, optional_codec=codec == "lossless")
        self._tiers = TierSet(*resolve_store(store, policy, force), host_bytes, self.counts)
        self._lock = threading.Lock()
        self._released: deque[HandleRef] = deque()  # of handles that are gone
        self._on_release = DeferredWeakrefCallback(
            self._released.append, partial(_reap, weakref.ref(self), self._released)
        )
        self._saved_tensors: dict[int, SavedTensor] = {}  # that graphs hold, by index
        self._ahead = ReadAhead(self._planner, self._tiers)
        self._step: ForwardPass | None = None
        self._steps = 0
        self._pending_moves = PendingMoves()
        self._module_hooks = ModuleHooks()
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._tiers.close)

    def __enter__(self) -> Offload:
        self.check()
        if self._step is not None:
            raise RuntimeError(
                "this Offload is in use already: make another for a second forward pass at the same time. After an "
                "interrupt (Ctrl-C) at the end of the with statement, close it and make another"
            )
        if not self._finalizer.alive:
            raise RuntimeError("this Offload is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this Offload was made before a fork: make another in the child process")
        self._reap()
        self._planner.prepare()
        with self._lock:  # other threads may release graphs, which changes the queue
            self._tiers.begin_pass(self._planner.window, self._planner.transit)
            self._ahead.begin_pass()
        self._steps += 1
        self._pending_moves = PendingMoves()
        step = ForwardPass(self._steps, self._planner)
        self.counts.iterations.append(step.iteration)
        try:
            self._step = step
            self._module_hooks.install(self._pack, hooks.unpack)
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
                for move in self._pending_moves.take():
                    self._move_out(step, move)
                step.finish()
                self._tiers.pump()
            self._planner.warn_of_excess(step.trace)
        self._reap()

    def _leave(self) -> None:
        self._step = None
        self._module_hooks.remove()

    def check(self) -> None:
        """Raise the error that left gradients incomplete, if any. Call it before ``optimizer.step``."""
        if self.failure is not None:
            raise ActivationLostError(f"an earlier backward pass failed: {self.failure}") from self.failure

    def report(self) -> Report:
        """Return the plan of the latest forward pass, and the counts and times since the Offload was made.

        A signal handler that interrupts this thread's own work also gets a report, after a second.
        """
        for _ in iter(partial(self._lock.acquire, timeout=_LOCK_TIMEOUT_S), False):  # see _reap for the iterator
            try:
                return report(self._planner, self.counts, self._tiers.store)
            finally:
                self._lock.release()
        return report(self._planner, self.counts, self._tiers.store)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the report's actual and predicted timelines: see :func:`fastio.offload.plot.draw`."""
        from fastio.offload.plot import draw

        draw(self.report(), path)

    @property
    def saved_tensors_alive(self) -> int:
        """The number of saved tensors that graphs still hold."""
        self._reap()
        return len(self._saved_tensors)

    def close(self) -> None:
        """Wait for pending transfers and close the store. Graphs that are still alive cannot run backward any more.

        Also ends a forward pass whose ``__exit__`` was interrupted before its first line, which Python code cannot
        prevent.
        """
        if self._module_hooks.thread == threading.get_ident():  # another thread cannot end it
            self._leave()
        with self._lock:
            if self._finalizer.alive:
                self._tiers.close()  # after an interrupt, the next call does the rest
                self._finalizer.detach()

    def restore(self, handle: Handle) -> torch.Tensor:
        """Return the saved tensor of a handle."""
        saved = handle.saved
        with self._lock:
            if self._released:
                self._reap_locked()
            if self.failure is not None:
                self.check()
            step = saved.step
            expected = step.record_use(saved.ordinal)
            tensor = saved.tensor(handle.view, *self._materialize(saved))
            step.record_served()
            self._ahead.used(saved, expected)
        if self._released:
            self._reap()
        return tensor

    def _pack(self, tensor: torch.Tensor) -> Kept | Handle:
        step = self._step
        # In a running backward (checkpoint's recomputation, double backward) a tensor is used at once, or kept.
        if step is None or torch._C._current_graph_task_id() != -1:
            return Kept(tensor)
        if not hooks.is_offloadable(tensor) or hooks.is_parameter(tensor):
            self.counts.passed_through += 1
            return Kept(tensor)
        view = View.of(tensor)
        touched = view.touched()
        storage = tensor.untyped_storage()
        # Of a large storage, a small view stays only if it is tiny: it keeps all of the storage.
        least = self._planner.least
        if touched.nbytes < _MIN_NBYTES or (least and tensor.device.type != "cpu" and storage.nbytes() < least):
            self.counts.passed_through += 1
            return Kept(tensor)
        operator = current_operator()
        with self._lock:
            if self._released:
                self._reap_locked()
            returned = self._pending_moves.take(operator)
            saved, new = step.saved_tensor_of(tensor, storage, touched, self._module_hooks.innermost)
            handle = Handle(self, saved, view, tensor)
            reference = HandleRef(handle, self._on_release)
            reference.saved = saved
            saved.handles.add(reference)
            self._saved_tensors[saved.index] = saved
            step.saved_by(operator, saved)
            if new:
                if view.offset == 0 and touched.nbytes == saved.source_nbytes:
                    saved.view = view
                placement = step.decide(self._codec)
                if placement.moves:
                    self._pending_moves.add(operator, PendingMove(saved, view, placement))
            for move in returned:
                self._move_out(step, move)
        if self._released:
            self._reap()
        return handle

    def _move_out(self, step: ForwardPass, move: PendingMove) -> None:
        saved = move.saved
        if saved.index not in self._saved_tensors:
            return  # backward ran inside the context and released it
        step.begin_move_out()
        began = time.perf_counter()
        if move.placement.encodes:
            if pack(saved, move.view, self._codec):
                self.counts.encoded += 1
                self.counts.spared_bytes += saved.nbytes - saved.stored_nbytes
            step.record_encoding(saved.ordinal, saved.nbytes / saved.stored_nbytes, began)
        limit = self._planner.room_to_write(self._pending_moves.nbytes)
        tier = self._tiers.move_out(saved, move.placement.tier, limit, move.placement.waits)
        step.record_move_out(saved.ordinal, time.perf_counter() - began, tier)

    def _materialize(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        """Return a storage with the bytes, and their shift in it. The lock is held."""
        if saved.state is State.FAILED or self._tiers.is_closed:
            raise ActivationLostError(f"saved tensor {saved.ordinal} of forward pass {saved.step.number} is gone")
        if saved.tier is not None:
            saved.tier.cancel(saved)
        found = self._in_memory(saved)
        if found is not None:
            self.counts.handed_back += 1
            return found
        try:
            tier_of(saved).bring(saved)
        except ActivationLostError as error:
            self.failure = ActivationLostError(str(error))  # a new error: the frames of this one hold the graph
            raise
        found = saved.in_memory()
        assert found is not None, "the bytes were read just now"
        return found

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
            handle = self._released[0]
            try:
                self._release(handle)
            except Exception:
                self._released.popleft()  # raised once
                raise
            self._released.popleft()

    def _release(self, handle: HandleRef) -> None:
        saved = handle.saved
        saved.handles.discard(handle)
        if saved.handles:
            return
        saved.step.forget(saved)
        self._ahead.forget(saved)
        if saved.tier is None:
            saved.release_bytes()
        elif not self._tiers.is_closed:
            saved.tier.drop(saved)
        self._saved_tensors.pop(saved.index, None)


def _reap(manager: weakref.ref[Offload], released: deque[HandleRef]) -> None:
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
