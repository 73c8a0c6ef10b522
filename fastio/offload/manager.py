"""The Offload context manager: moves the tensors that autograd saves out of memory and back."""

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
from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.module_hooks import ModuleHooks
from fastio.offload.autograd.operators import PendingMove, PendingMoves, current_operator
from fastio.offload.autograd.saved_tensor import HandleRef, SavedTensor, SavingPass, State, View
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
_READS_PER_USE = 2  # on an accelerator, which gets no kernels while the host begins reads


class Offload:
    """A context manager for the forward pass. Backward may run inside or after it.

    ``store``: a folder, an empty block device, a list of them to stripe over, or an open store (see
    :class:`fastio.offload.stores.tiers.Store`). NVMe namespaces without the kernel's block layer: "nvme:/dev/ng0n1"
    (the kernel's passthrough), "vfio:0000:03:00.0" (driven by this process) or "spdk:trtype=TCP traddr=..." (by SPDK).
    ``fastio-bench doctor`` lists what prevents their use. A device in use is always refused. A device with a filesystem
    or a partition table is refused unless ``force`` is its serial number. ``budget``: bytes (or "8GiB") of memory for
    saved tensors: those that stay, wait for their write, were written and may be needed soon, are read ahead or in use.
    In forward, the tensors of the running operator come on top. Backward needs all tensors of one operator at once: if
    they exceed the budget, memory exceeds it too, and a UserWarning says by how much. By at most the tensors of one
    operator, memory may exceed it without a warning in the first backward of a shape, whose order is a guess, and under
    the vDNN policies, whose plans do not count them; and by what a graph made by backward itself holds. With a budget
    of 0 ("all" and "fastensor" only) no write is left pending and nothing is read ahead. ``host_budget``: bytes of host
    memory (pinned for tensors on a GPU) for the tensors that come back soonest; the others go to the store.

    ``policy``: "all" moves every saved tensor asynchronously. "fastensor" moves every tensor and waits for each
    transfer, for comparison (with one folder it writes files by the tools that WRDic chooses). The other policies of
    :func:`fastio.offload.planning.schedule.plan`, or a function with the same arguments, profile the first forward pass
    (which moves everything and waits), plan, and then move what the plan selected. A forward pass with other shapes is
    profiled again. On a GPU three passes come before the plan, under "all" too: the first one waits, and is not timed,
    because libraries start in it; the second one waits, and times transfers; the third one times compute. Without a
    budget, "flashneuron" and "optimal" select as if nothing could stay in memory, but keep the tensors that backward
    needs before they could be out and back; "all" keeps those too. The vDNN policies recognise a layer by the class of
    its module.

    ``codec``: see :func:`fastio.offload.codecs.encoding.encode`. "lossless" encodes in the profiled pass, and later
    only if the plain bytes would not hide behind the forward pass (FlashNeuron's two phases). Rounding codecs do not
    round integers or what looks like statistics (tensors with one dimension, or whose last dimension is 1).

    These tensors stay in memory: less than 4096 bytes, parameters (also cast or viewed), subclasses, nested tensors,
    non-strided tensors, and devices other than the CPU and CUDA. On a GPU, from the second pass on, the smallest ones
    stay too: those below 1 MiB, as far as all of them have at most 1/32 of the first pass's bytes, and of the budget.
    Moving one takes the host longer than the transfer. "fastensor" moves them.

    With an exact codec, gradients equal those of plain training bit for bit. A tensor that was modified in place after
    it was saved raises RuntimeError in backward, as it does without Offload. So does a tensor that backward itself
    modified and then needs again. Writes that autograd does not see (through ``.data`` or by other programs) may or may
    not reach backward.

    On the CPU a tensor comes back with its shape, strides, storage offset and storage size. If its storage is more than
    twice as large as the range from its first to its last element, only that range comes back, and the rest is zero. On
    a GPU such a tensor comes back on a smaller storage, at another offset.

    Where torch forbids saved-tensor hooks it raises its RuntimeError: ``torch.func.grad``, ``vjp``, ``jacrev`` and
    ``hessian`` inside or around the context, and ``torch.autograd.graph.disable_saved_tensors_hooks``.
    ``torch.func.linearize`` and ``make_fx`` raise NotImplementedError: they record operators, and cannot record those
    of the context. ``jvp``, ``jacfwd``, ``vmap`` and ``functional_call`` work.

    On a GPU the memory of a moved tensor is freed in the forward pass, behind the streams whose operators saved it. For
    another stream that reads it, call ``record_stream``, as for a tensor that no graph holds.

    On the CPU the memory of moved tensors is freed, but the process does not shrink: glibc keeps blocks below 32 MiB
    unless the environment variable MALLOC_MMAP_THRESHOLD_ (for example 1048576) is set.

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
        self._in_use: dict[int, SavedTensor] = {}  # handed out, and not seen to be freed
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
            self._reap_locked()
            self.check()
            step = saved.step
            step.record_use(saved.ordinal)
            tensor = handle.view.on(*self._materialize(saved), saved.unpacked)
            if saved.tier is not None:
                self._in_use[saved.index] = saved
            step.record_served()
            self._prefetch(step)
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
        # Of a large storage, a small view stays only if it is tiny: it keeps all of the storage.
        least = 0 if tensor.device.type == "cpu" else self._planner.least or 0
        if view.touched().nbytes < _MIN_NBYTES or tensor.untyped_storage().nbytes() < least:
            self.counts.passed_through += 1
            return Kept(tensor)
        operator = current_operator()
        with self._lock:
            self._reap_locked()
            returned = self._pending_moves.take(operator)
            saved, new = step.saved_tensor_of(tensor, view, self._module_hooks.innermost)
            handle = Handle(self, saved, view, tensor)
            saved.handles.add(HandleRef(handle, self._on_release, saved))
            self._saved_tensors[saved.index] = saved
            step.saved_by(operator, saved)
            if new and (choice := step.decide()).moves:
                encodes = step.should_encode(self._codec)
                self._pending_moves.add(operator, PendingMove(saved, view, choice.waits, choice.tier, encodes))
            for move in returned:
                self._move_out(step, move)
        self._reap()
        return handle

    def _move_out(self, step: ForwardPass, move: PendingMove) -> None:
        saved = move.saved
        if saved.index not in self._saved_tensors:
            return  # backward ran inside the context and released it
        step.begin_move_out()
        began = time.perf_counter()
        if move.encodes:
            if pack(saved, move.view, self._codec):
                self.counts.encoded += 1
                self.counts.spared_bytes += saved.nbytes - saved.stored_nbytes
            step.end_encoding()
            step.record_encoding(saved.ordinal, saved.nbytes / saved.stored_nbytes, time.perf_counter() - began)
        tier = self._tiers.choose(saved.device, saved.stored_nbytes, move.tier)
        limit = 0 if move.waits else self._planner.room_to_write(self._pending_moves.nbytes)
        self._tiers.move_out(tier, saved, limit)
        step.record_move_out(saved.ordinal, time.perf_counter() - began, tier.name)

    def _materialize(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        """Return a storage with the bytes, and their shift in it. The lock is held."""
        if saved.state is State.FAILED or not self._finalizer.alive:
            raise ActivationLostError(f"saved tensor {saved.ordinal} of forward pass {saved.step.number} is gone")
        if saved.tier is not None:
            saved.tier.cancel(saved)
        found = self._in_memory(saved)
        if found is not None:
            self.counts.handed_back += 1
            return found
        try:
            if saved.state is State.DISK:
                tier_of(saved).fetch(saved)
            tier_of(saved).finish(saved)
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

    def _prefetch(self, step: SavingPass) -> None:
        """Read the next tensors that fit the window, and unload those that are not needed soon."""
        coming, held = self._within_window(step)
        needed = {saved.index for saved in coming}
        for saved in self._tiers.loaded:
            # A buffer that is being read into must stay: the device writes to it.
            if saved.index not in needed and saved.state is State.RESIDENT:
                tier_of(saved).unload(saved)
        # If memory is short now, the tensor is read when it is needed.
        with contextlib.suppress(MemoryError, torch.OutOfMemoryError):
            started = 0
            for saved in coming:
                if saved.state is State.DISK:
                    if started == _READS_PER_USE and saved.device.type != "cpu":
                        break
                    tier_of(saved).fetch(saved)
                    started += 1
        self._tiers.pump(held)

    def _within_window(self, step: SavingPass) -> tuple[list[SavedTensor], set[int]]:
        """Return the next tensors that are loaded or need to be: as many as fit beside the others in memory.

        Those are being read, in use, or wait for their write. A tensor is in use until autograd frees it: its node may
        need more tensors. Also returns the indices of the tensors before and between them whose write has not ended.
        """
        coming: list[SavedTensor] = []
        held: set[int] = set()
        if step.order is None:
            return coming, held
        loaded = self._tiers.loaded
        self._in_use = {index: saved for index, saved in self._in_use.items() if saved.is_in_use}
        in_use = sum(saved.nbytes for saved in self._in_use.values() if saved.state is not State.PENDING)
        room = self._planner.room_to_read(step.kept_nbytes, self._tiers.waiting_bytes + in_use)
        room -= sum(saved.nbytes for saved in loaded if saved.state is State.INFLIGHT)
        for ordinal in step.order.coming():
            saved = step.saved_tensors.get(ordinal)
            if saved is None or saved.state is State.FAILED:
                continue
            if saved.held and saved not in loaded:
                held.add(saved.index)
                continue
            if saved.state is State.DISK and saved.in_memory() is not None:
                continue
            if saved.state is not State.INFLIGHT and saved.index not in self._in_use:
                room -= saved.nbytes
            # The very next tensor stays loaded, whatever the room: two nodes in a row often use the same one.
            if room < 0 and (coming or saved not in loaded):
                break
            coming.append(saved)
        return coming, held

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
        self._in_use.pop(saved.index, None)
        if saved.tier is None:
            saved.release_bytes()
        elif self._finalizer.alive:
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
