"""The Offload context manager: moves the tensors that autograd saves out of memory and back."""

from __future__ import annotations

import itertools
import os
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any

import torch

from fastio._native import DeferredWeakrefCallback
from fastio.arguments import Path, Size
from fastio.offload.autograd import hooks
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.hooks import Handle, Kept
from fastio.offload.autograd.module_hooks import ModuleHooks
from fastio.offload.autograd.read_ahead import ReadAhead
from fastio.offload.autograd.saved_tensor import HandleRef, SavedTensor, State
from fastio.offload.autograd.thread_pass import PendingMove, ThreadPass
from fastio.offload.autograd.views import view_of
from fastio.offload.codecs.encoding import Codec, is_exact
from fastio.offload.codecs.saved_tensor_encoding import pack, unpack
from fastio.offload.device_memory import DeviceMemory
from fastio.offload.out_of_memory import Result, StepState, is_out_of_memory, run_twice
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.schedule import Policy, PolicyName
from fastio.offload.recompute.checkpoint_policy import PlannedPolicy
from fastio.offload.recompute.operator_policy import OperatorPolicy, Operators
from fastio.offload.recompute.recipe import Hold
from fastio.offload.recompute.recomputation import Recomputation
from fastio.offload.report import Counts, Report, report
from fastio.offload.stores.resolve_store import resolve_store
from fastio.offload.stores.tier_set import TierSet, tier_of
from fastio.offload.stores.tiers import ActivationLostError, Store
from fastio.sizes import format_size, parse_size

_LOCK_TIMEOUT_S = 1.0  # seconds
_MIN_NBYTES = 4096  # smaller tensors are not worth a block of the device

_backward_task: Any = torch._C._current_graph_task_id  # of this thread; -1: no backward runs here
_sequence_number: Any = torch._C._autograd._get_sequence_nr  # see ThreadPass


class Offload:
    """A context manager for the forward pass. Backward may run inside or after it.

    Args:
        model: whose forward in other threads (nn.DataParallel) is taken too. None: that of threads started inside.
        store: a folder, an empty block device, a list of them to stripe over, or an open store (see
            :class:`fastio.offload.stores.tiers.Store`). NVMe namespaces without the kernel's block layer:
            "nvme:/dev/ng0n1" (the kernel's passthrough), "vfio:0000:03:00.0" (driven by this process) or
            "spdk:trtype=TCP traddr=..." (by SPDK). ``fastio-bench doctor`` lists what prevents their use.
        budget: bytes (or "8GiB") of memory for saved tensors. None: what fits the device beside all else.
        host_budget: bytes of host memory (pinned for tensors on a GPU) for the tensors that come back soonest; the
            others go to the store.
        policy: one of :data:`fastio.offload.planning.schedule.POLICIES`, a function with the arguments of
            :func:`fastio.offload.planning.schedule.plan`, or what
            ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes.
        codec: see :func:`fastio.offload.codecs.encoding.encode`.
        strict_paper: plan by the letter of FlashNeuron, section 3.3, with policy "flashneuron".
        force: the serial number of a device with a filesystem or a partition table, which is refused otherwise. A
            device in use is always refused.

    With an exact codec, gradients equal those of plain training bit for bit. ``docs/offload.md`` says which tensors
    move, what memory they take, and where torch does not allow it.

    Raises ValueError for places of several drivers or ``strict_paper`` with another policy, DeviceInUseError for a
    refused device, InfeasibleBudget on entering if the policy cannot keep the budget, and ActivationLostError in
    backward if a tensor cannot be read back. After that error the Offload cannot be used.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        *,
        store: Path | Sequence[Path] | Store,
        budget: Size | None = None,
        host_budget: Size = 0,
        policy: PolicyName | Policy | Operators = "flashneuron",
        codec: Codec = "lossless",
        strict_paper: bool = False,
        force: str | None = None,
    ) -> None:
        if model is not None and not isinstance(model, torch.nn.Module):
            raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module or None")
        is_exact(codec)  # raises ValueError for an unknown one
        self._model = model
        self._codec = codec
        self.counts = Counts()
        self.failure: ActivationLostError | None = None
        host_bytes = parse_size(host_budget, "host_budget") or 0
        operators = OperatorPolicy.of(policy)
        planned: Any = policy if operators is None else "all"
        limit = parse_size(budget, "budget")
        self._planner = Planner(
            planned, limit, host_bytes, codec in {"lossless", "exponents"}, strict_paper, DeviceMemory()
        )
        if operators is not None:
            self._planner.title = operators.name
        self._tiers = TierSet(*resolve_store(store, policy, force), host_bytes, self.counts)
        self._lock = threading.Lock()
        self._released: deque[HandleRef | Hold] = deque()  # of handles that are gone
        self._on_release = DeferredWeakrefCallback(
            self._released.append, partial(_reap, weakref.ref(self), self._released)
        )
        self._saved_tensors: dict[int, SavedTensor] = {}  # that graphs hold, by index
        self._ahead = ReadAhead(self._planner, self._tiers)
        self._recomputation: Recomputation | None = None
        if operators is not None or policy == "joint":
            self._recomputation = Recomputation(self, self._tiers.loaded, operators)
        self._numbers = itertools.count(1)  # of forward passes
        self._threads = ModuleHooks(model)
        self._process = os.getpid()
        self._finalizer = weakref.finalize(self, self._tiers.close)

    def __repr__(self) -> str:
        planner = self._planner
        budget = "fitted" if planner.given_budget is None else format_size(planner.given_budget)
        passes = self.counts.iterations[-1].step if self.counts.iterations else 0
        state = "closed" if not self._finalizer.alive else "failed" if self.failure is not None else "open"
        return (
            f"<fastio Offload to {self._tiers.store!r}: policy {planner.title}, budget {budget}, codec {self._codec}, "
            f"forward passes: {passes}, {state}>"
        )

    def __enter__(self) -> Offload:
        self.check()
        here = self._threads.here()
        if here is not None:
            if here.step is not None and not here.taken:
                raise RuntimeError(
                    "this Offload is in use already in this thread: make another for a second forward pass at the same "
                    "time. After an interrupt (Ctrl-C) at the end of the with statement, close it and make another"
                )
            self.end_thread(here, completed=True)
        if not self._finalizer.alive:
            raise RuntimeError("this Offload is closed")
        if os.getpid() != self._process:
            raise RuntimeError("this Offload was made before a fork: make another in the child process")
        self._reap()
        with self._lock:  # other threads may release graphs, which changes the queue
            self._planner.prepare()
            self._tiers.begin_pass(self._planner.window, self._planner.transit)
            self._ahead.begin_pass()
        here = self._begin(taken=False)
        try:
            self._begin_recording(here)
            self._threads.install(self, here)
        except BaseException:
            self._leave(here)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = self._threads.here()
        if here is not None:
            self.end_thread(here, kind is None)
        if is_out_of_memory(error):
            self._planner.tighten()

    def begin_thread(self) -> ThreadPass:
        """See :class:`fastio.offload.autograd.module_hooks.Owner`."""
        here = self._begin(taken=True)
        self._begin_recording(here)
        return here

    def end_thread(self, here: ThreadPass, completed: bool) -> None:
        """See :class:`fastio.offload.autograd.module_hooks.Owner`."""
        step = here.step
        self._leave(here)
        if step is not None and completed:
            with self._lock:
                for move in here.take():
                    self._move_out(step, move)
                step.finish()
                self._tiers.pump()
            self._planner.warn_of_excess(step.trace)
            if not step.trace.saved:
                self._threads.warn_of_missed()
        self._reap()

    def step(self, closure: Callable[[], Result]) -> Result:
        """Run a training step in the context; if memory runs out in it, run it again once, with half of the budget.

        ``closure`` clears the gradients, computes the loss, calls backward and returns the loss, as for
        :meth:`torch.optim.Optimizer.step`. Before the second run, the states of the random generators are set back, and
        so are the buffers of ``model``. Raises the second run's error, and the first one's if no tighter plan is
        possible.
        """
        tightened = self._planner.tightened

        def run() -> Result:
            with self:
                return closure()

        state = StepState(() if self._model is None else self._model.buffers())
        return run_twice(run, state, lambda: self._planner.tightened > tightened)

    def _begin(self, taken: bool) -> ThreadPass:
        step = ForwardPass(next(self._numbers), self._planner)
        with self._lock:
            self._planner.add_pass(step)
        self.counts.iterations.append(step.iteration)
        here = ThreadPass(step, taken)
        here.pack = partial(self._pack, here)
        return here

    def _begin_recording(self, here: ThreadPass) -> None:
        if self._recomputation is not None:
            here.pack, here.unpack = self._recomputation.begin_pass(here.pack)

    def _leave(self, here: ThreadPass) -> None:
        here.step = None
        if self._recomputation is not None:
            self._recomputation.end_pass()
        self._threads.remove(here)

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

    def checkpoint_policy(self) -> PlannedPolicy:
        """Return the plan as a policy for one call of ``torch.utils.checkpoint.create_selective_checkpoint_contexts``.

        Raises RuntimeError if nothing is planned: only "joint" plans with operators.
        """
        profile = self._planner.latest
        if self._planner.policy != "joint" or profile is None or not profile.planned:
            raise RuntimeError(
                "this Offload has not planned which operators to recompute: use policy='joint', run a "
                "forward and a backward pass, and enter it once more"
            )
        return PlannedPolicy(profile)

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
        here = self._threads.here()
        if here is not None:  # another thread cannot end it
            self._leave(here)
        with self._lock:
            if self._finalizer.alive:
                self._tiers.close()  # after an interrupt, the next call does the rest
                self._finalizer.detach()

    def restore(self, handle: Handle) -> torch.Tensor:
        """Return the saved tensor of a handle."""
        saved = handle.saved
        step = saved.step
        with self._lock:
            if self._released:
                self._reap_locked()
            if self.failure is not None:
                self.check()
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

    def _pack(self, here: ThreadPass, tensor: torch.Tensor) -> Kept | Handle:
        step = here.step
        # In a running backward (checkpoint's recomputation, double backward) a tensor is used at once, or kept.
        if step is None or _backward_task() != -1:
            return Kept(tensor)
        kind = hooks.kind_of(tensor)
        if not kind.offloadable or hooks.is_parameter(tensor):
            self.counts.passed_through += 1
            return Kept(tensor)
        view, touched = view_of(
            tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), kind.conj, kind.neg
        )
        storage = tensor.untyped_storage()
        nbytes = storage.nbytes()
        # Of a large storage, a small view stays only if it is tiny: it keeps all of the storage.
        least = self._planner.least
        if touched.nbytes < _MIN_NBYTES or (least and kind.accelerator is not None and nbytes < least):
            self.counts.passed_through += 1
            return Kept(tensor)
        operator = _sequence_number()
        with self._lock:
            if self._released:
                self._reap_locked()
            returned = here.take(operator) if operator != here.operator else ()
            saved, new = step.saved_tensor_of(tensor, kind, storage, nbytes, touched, here)
            handle = Handle(self, saved, view, hooks.maker_of(tensor))
            reference = HandleRef(handle, self._on_release)
            reference.saved = saved
            saved.handles.add(reference)
            self._saved_tensors[saved.index] = saved
            if not step.is_steady:
                step.saved_by(operator, saved)
            if new:
                if view.offset == 0 and touched.nbytes == nbytes:
                    saved.view = view
                placement = step.decide(self._codec)
                if self._recomputation is not None:
                    placement = self._recomputation.place(step, saved, placement)
                if placement.moves:
                    here.add((saved, view, placement))
            for move in returned:
                self._move_out(step, move)
        if self._released:
            self._reap()
        return handle

    def _move_out(self, step: ForwardPass, move: PendingMove) -> None:
        saved, view, (_, waits, encodes, tier) = move
        if saved.index not in self._saved_tensors:
            return  # backward ran inside the context and released it
        if not step.is_steady:
            step.begin_move_out()
        began = time.perf_counter()
        if encodes:
            if pack(saved, view, self._codec):
                self.counts.encoded += 1
                self.counts.spared_bytes += saved.nbytes - saved.stored_nbytes
            step.record_encoding(saved.ordinal, saved.nbytes / saved.stored_nbytes, began)
        else:
            step.trace.pack_s[saved.ordinal] = 0.0
        planner = self._planner
        limit = planner.window if planner.budget is None else planner.window - self._threads.waiting_nbytes
        tier = self._tiers.move_out(saved, tier, limit, waits)
        step.record_move_out(saved.ordinal, time.perf_counter() - began, tier)

    def _materialize(self, saved: SavedTensor) -> tuple[torch.UntypedStorage, int]:
        """Return a storage with the bytes, and their shift in it. The lock is held."""
        if saved.state is State.FAILED or self._tiers.is_closed:
            raise ActivationLostError(f"saved tensor {saved.ordinal} of forward pass {saved.step.number} is gone")
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
            handle = self._released[0]
            try:
                self._release(handle)
            except Exception:
                self._released.popleft()  # raised once
                raise
            self._released.popleft()

    def _release(self, handle: HandleRef | Hold) -> None:
        saved = handle.saved
        saved.handles.discard(handle)
        if saved.handles:
            return
        if saved.recipe is not None:
            self._released.extend(saved.recipe.held)
        saved.step.forget(saved)
        self._ahead.forget(saved)
        if saved.tier is None:
            saved.release_bytes()
        elif not self._tiers.is_closed:
            saved.tier.drop(saved)
        self._saved_tensors.pop(saved.index, None)


def _reap(manager: weakref.ref[Offload], released: deque[HandleRef | Hold]) -> None:
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
