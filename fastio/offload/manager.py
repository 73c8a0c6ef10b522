"""The Offload context manager: moves the tensors that autograd saves out of memory and back."""

from __future__ import annotations

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch

from fastio.arguments import Path, Size
from fastio.errors import add_to_message, kind_of
from fastio.offload.autograd.forward_pass import ForwardPass
from fastio.offload.autograd.module_hooks import ModuleHooks
from fastio.offload.autograd.thread_pass import ThreadPass
from fastio.offload.codecs.encoding import Codec, is_exact
from fastio.offload.device_memory import DeviceMemory
from fastio.offload.device_support import DeviceSupport
from fastio.offload.out_of_memory import StepState, is_out_of_memory
from fastio.offload.planning.planner import Planner
from fastio.offload.planning.schedule import Policy, PolicyName
from fastio.offload.recompute.operator_policy import OperatorPolicy, Operators, PlannedPolicy
from fastio.offload.recompute.recomputation import Recomputation
from fastio.offload.report import Counts, Report, report
from fastio.offload.saved_tensors import SavedTensors
from fastio.offload.stores.resolve_store import resolve_store
from fastio.offload.stores.tier_set import TierSet
from fastio.offload.stores.tiers import Store
from fastio.runtime.uncompiled import uncompiled
from fastio.runtime.uncopied import Uncopied
from fastio.sizes import format_size, parse_size

_LOCK_TIMEOUT_S = 1.0  # seconds

Result = TypeVar("Result")


class Offload(SavedTensors, Uncopied):
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
        policy: "flashneuron" (what the budget requires, by a plan), "optimal" (keeps, moves or recomputes, whichever
            makes the step shortest), "all", "vdnn-all", "vdnn-conv", "vdnn-dyn" (inputs of all layers, of convolutions,
            or what memory requires: by the budget, or without one by trials in :meth:`step`) or "fastensor" (all,
            waiting for each); a function with the arguments of :func:`fastio.offload.planning.schedule.plan`; or what
            ``torch.utils.checkpoint.create_selective_checkpoint_contexts`` takes.
        codec: exact: "lossless" (packs mostly zeros), "exponents" (and bfloat16 on the CPU), "csr" or "none". Rounding
            for storage: "fp16", "bf16" or "csr+fp16". See :func:`fastio.offload.codecs.encoding.encode`.
        strict_paper: plan by the letter of FlashNeuron, section 3.3, with policy "flashneuron".
        force: the serial number of a device with a filesystem or a partition table, which is refused otherwise. A
            device in use is always refused.

    With an exact codec, gradients equal those of plain training bit for bit. ``docs/offload.md`` says which tensors
    move, what memory they take, and where torch does not allow it.

    Raises ValueError for places of several drivers or ``strict_paper`` with another policy, DeviceInUseError for a
    refused device, ToolUnavailableError if the codec, or the tool that a store of files names, cannot take the tensors
    of a device (here if ``model`` is on it, else before the first of them moves), InfeasibleBudget on entering if the
    policy cannot keep the budget, and ActivationLostError in backward if a tensor cannot be read back. After that error
    the Offload cannot be used. That a packed tensor came back damaged, a GPU tells after its use, of which no thread
    waits for the end: then a later call raises that error, at the latest ``check()``, which does wait, or ``close()``.
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
            raise TypeError(f"model is {kind_of(model)}: expected a torch.nn.Module or None")
        is_exact(codec)  # raises ValueError for an unknown one
        support = DeviceSupport(codec, store)
        support.require_for(model)
        self._model = model
        counts = Counts()
        host_bytes = parse_size(host_budget, "host_budget") or 0
        operators = OperatorPolicy.of(policy)
        planned: Any = policy if operators is None else "all"
        limit = parse_size(budget, "budget")
        title = "" if operators is None else operators.name
        optional = codec in {"lossless", "exponents"}
        planner = Planner(planned, limit, host_bytes, optional, DeviceMemory(), strict_paper, title)
        tiers = TierSet(*resolve_store(store, policy, force), host_bytes, counts)
        super().__init__(planner, tiers, ModuleHooks(model), codec, support, counts)
        if operators is not None or policy == "optimal":
            self._recomputation = Recomputation(self, self._tiers.loaded, operators)
        self._numbers = itertools.count(1)  # of forward passes
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

    @uncompiled
    def __enter__(self) -> Offload:
        self._raise_failure()
        here = self._threads.here()
        if here is not None:
            if here.step is not None and not here.taken:
                raise RuntimeError(
                    "this Offload is in use already in this thread: make another for a second forward pass at the same "
                    "time. After an interrupt (Ctrl-C) at the end of the with statement, close it and make another"
                )
            self.end_thread(here, completed=True)
        if not self._finalizer.alive:
            raise RuntimeError("this Offload is closed: make another")
        if os.getpid() != self._process:
            raise RuntimeError("this Offload was made before a fork: make another in the child process")
        self._support.require_for(self._model)
        self._reap()
        with self._lock:  # other threads may release graphs, which changes the queue
            self._verify()
            self._raise_failure()
            self._planner.prepare(self._tiers.released_bytes)
            self._tiers.begin_pass(self._planner.window, self._planner.transit, not self._saved_tensors)
            self._ahead.begin_pass()
        here = self._begin(taken=False)
        try:
            self._begin_recording(here)
            self._threads.install(self, here)
        except BaseException:
            self._leave(here)
            raise
        return self

    @uncompiled
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        here = self._threads.here()
        if here is not None:
            self.end_thread(here, kind is None)
        if is_out_of_memory(error):
            self._planner.tighten()

    def begin_thread(self) -> ThreadPass:
        """Begin a pass of a thread that a module's forward brings. Called by ModuleHooks."""
        here = self._begin(taken=True)
        self._begin_recording(here)
        return here

    def end_thread(self, here: ThreadPass, completed: bool) -> None:
        """End a thread's pass, and remove its hooks. ``completed``: the forward raised no exception."""
        step = here.step
        self._leave(here)
        if step is not None and completed:
            with self._lock:
                self._move_all_out(step, here, here.take())
                step.finish()
                self._tiers.pump()
            self._planner.warn_of_excess(step.trace)
            if not step.trace.saved:
                self._threads.warn_of_missed()
        elif step is not None:
            step.abandon()
        self._reap()

    def step(self, closure: Callable[[], Result]) -> Result:
        """Run forward and backward in the context; if memory runs out, run them again once, with half of the budget.

        It updates no weights: call the optimizer's ``step()`` afterwards. Without a budget, policy "vdnn-dyn" runs it
        again until one of its passes has enough.

        ``closure`` clears the gradients, computes the loss, calls backward and returns the loss, as for
        :meth:`torch.optim.Optimizer.step`. Before the second run, the states of the random generators are set back, and
        so are the buffers of ``model``. Raises the second run's error, and the first one's if no tighter plan is
        possible.

        >>> loss = offload.step(closure)
        >>> optimizer.step()
        """
        planner, runs, advice = self._planner, 0, ""
        tightened, retried = planner.tightened, planner.retried
        state = StepState(() if self._model is None else self._model.buffers())
        while True:
            try:
                with self:
                    advice = planner.advice()  # before memory that runs out halves the budget
                    return closure()
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                runs += 1
                if planner.retried < retried + runs and (runs > 1 or planner.tightened == tightened):
                    again = f"\nOffload.step ran this step {advice}"
                    add_to_message(error, again if runs > 1 else planner.advice_after_one_run())
                    raise
            gc.collect()  # the error, whose frames hold the graph, is gone here
            state.restore()

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
            here.pack = self._recomputation.begin_pass(here.pack)

    def _leave(self, here: ThreadPass) -> None:
        here.step = None
        if self._recomputation is not None:
            self._recomputation.end_pass()
        self._threads.remove(here)

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

        Raises RuntimeError if nothing is planned: only "optimal" plans with operators.
        """
        profile = self._planner.latest
        if self._planner.policy != "optimal" or profile is None or not profile.planned:
            raise RuntimeError(
                "this Offload has not planned which operators to recompute: use policy='optimal', run a "
                "forward and a backward pass, and enter it once more"
            )
        return PlannedPolicy(profile)

    def close(self) -> None:
        """Wait for pending transfers and close the store. Graphs that are still alive cannot run backward any more.

        Also ends a forward pass whose ``__exit__`` was interrupted before its first line, which Python code cannot
        prevent. Does nothing in a forked process, where all of this is the parent's. Raises ActivationLostError, with
        the store closed, if a GPU tells only now that a packed tensor had come back damaged.
        """
        if os.getpid() != self._process:
            return
        here = self._threads.here()
        if here is not None:  # another thread cannot end it
            self._leave(here)
        with self._lock:
            if self._finalizer.alive:
                self._tiers.close()  # after an interrupt, the next call does the rest
                self._finalizer.detach()
            if self.failure is None:
                self._verify(wait=True)
                self._raise_failure()
