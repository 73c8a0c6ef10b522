"""Hybrid: training a model whose parameters lie in host memory, by a plan for each layer (MemFerry)."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.nn import Module
from torch.optim import Optimizer

from fastio.hybrid import requirements
from fastio.hybrid.errors import HybridError
from fastio.hybrid.first_step import Survey
from fastio.hybrid.measuring import Measuring
from fastio.hybrid.measuring import costs as measured
from fastio.hybrid.memory.device_memory import Memories, memories_of
from fastio.hybrid.memory.flat_buffer import HostVector
from fastio.hybrid.memory.gradient_copies import Gradients, Taken
from fastio.hybrid.memory.layers import Layer, Slot, as_called, found, moved_to_host
from fastio.hybrid.memory.shadow_model import Shadow
from fastio.hybrid.module_hooks import Watch
from fastio.hybrid.optimizer.cpu_optimizer import Worker, refuse, to_host
from fastio.hybrid.optimizer.optimizer_hooks import OptimizerHooks, refuse_taken
from fastio.hybrid.optimizer.ssd_states import OnStore
from fastio.hybrid.optimizer.update_states import InMemory, States
from fastio.hybrid.planning.backward_prefetch import copies
from fastio.hybrid.planning.costs import LayerCosts, forward_ends
from fastio.hybrid.planning.plan import Plan, Planner, check, plan
from fastio.hybrid.report import Report
from fastio.hybrid.simulation import machines
from fastio.offload.arguments import parsed_bytes
from fastio.offload.stores.block_store import BlockStore

MACHINE = machines.A100  # whose costs are planned with where this machine's mean nothing


class Hybrid:
    """Takes a model's parameters and its optimizer's work to host memory, and the parameters to the GPU by a plan.

    ::

        hybrid = fastio.Hybrid(model, optimizer, gpu_budget="8GiB")
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            hybrid.step()

    ``optimizer``: torch's Adam, AdamW or SGD over parameters of the model; ``hybrid.step()`` is ``optimizer.step()``,
    which from now on updates in host memory, on the CPU. Its settings are its own: with ``fused=True``, which is the
    fastest, torch's fused kernels; without it the implementation that plain training has on the CPU, for fused kernels
    round otherwise, and bits are to be plain training's (on a GPU, where they are not: fused, unless it says
    otherwise). ``gpu_budget``: bytes, or "8GiB", of parameters on the GPU. ``gradient_reserve``: the share of all
    gradients' bytes that may stay there, 0 to 1. ``planner``: see :func:`fastio.hybrid.plan`. ``optimizer_store``: a
    folder (or block devices, see :class:`fastio.offload.BlockStore`) for the optimizer's state; gradients in host
    memory are then pages of a file there.

    ``device``: "cuda" where there is one; "cpu" uses two buffers of host memory for the two memories, and plans with
    simulated costs. The model's buffers are moved to the device, its inputs are the caller's.

    The first step tells which layers run. Without a GPU it is planned after it; with one after two more, which are
    measured. All of them are steps of training, and values are those of plain training throughout. Parameters are the
    same objects with the same names; ``state_dict`` and ``load_state_dict`` of both, gradient accumulation, clipping,
    autocast, tied and frozen parameters and DistributedDataParallel work as before. Threads that use the model take
    turns: a forward pass while another thread's, or an update, is under way is a HybridError. What is kept of ``grad``
    beyond ``zero_grad`` may be overwritten by the next backward pass, and torch.compile is not supported. Under other
    saved-tensor hooks (checkpointing, Offload), where ``disable_saved_tensors_hooks`` forbids them, and on torch 2.6,
    which does not tell of such, backward reads what forward read: copies for backward alone (DFGB) are of no use then.
    ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian`` of a model with copied layers raise torch's RuntimeError,
    for they allow no copy to memory that was there before.

    Raises GpuBudgetError, HybridError, TypeError and ValueError for what it cannot train; the message says what to
    change.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        gpu_budget: int | str | None = None,
        gradient_reserve: float = 1.0,
        planner: str | Planner = "memferry",
        optimizer_store: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if not isinstance(model, Module):
            raise TypeError(f"model is a {type(model).__name__}: expected a torch.nn.Module")
        refuse(optimizer)
        refuse_taken(optimizer)
        check(planner, gradient_reserve)
        self._budget = parsed_bytes(gpu_budget, "gpu_budget")
        self._reserve = gradient_reserve
        self._planner = planner
        self._model = model
        self._optimizer = optimizer
        self._memories: Memories = memories_of(device)
        requirements.strangers(model, optimizer)
        groups = found(model)
        sizes = [(name, sum(p.numel() * p.element_size() for _, p in own)) for name, _, own in groups]
        requirements.budget(sizes, self._budget)
        store = None if optimizer_store is None else BlockStore(optimizer_store)
        self._finalizer = weakref.finalize(self, store.close if store is not None else _nothing)

        self._layers, self._vector = moved_to_host(groups, self._memories)
        slots = [slot for layer in self._layers for slot in layer.slots]
        self._slots: dict[torch.Tensor, Slot] = {slot.parameter: slot for slot in slots}
        trained = [slot for slot in slots if slot.parameter.requires_grad]
        folder = store.places[0] if store is not None and os.path.isdir(store.places[0]) else None
        self._gradients = Gradients(trained, HostVector(self._vector.nbytes, self._memories, folder), self._memories)
        if gradient_reserve < 1:
            self._gradients.put_on_host(trained)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self._memories.device)
        to_host(optimizer)
        worker = Worker(optimizer, fuse=self._memories.device.type == "cuda")
        gradients = list(self._gradients.of.values())
        self._states: States = (
            InMemory(optimizer, worker, gradients) if store is None else OnStore(store, optimizer, worker, gradients)
        )
        self.plan: Plan | None = None
        self._costs: list[LayerCosts] | None = None
        self._steps = 0
        self._survey = Survey()
        self._in_place: Measuring | None = None  # the first of the two steps that are measured, once it is over
        self._measuring: Measuring | None = None  # the one that is measured now
        self._shadow: Shadow | None = None
        self._watch = Watch(model.modules(), self._survey, None if store is None else os.getpid())
        self._hooks = OptimizerHooks(optimizer, self)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with their gradients, on the CPU; what ``optimizer.step`` does.

        Raises HybridError where parameters were added, exchanged or moved since, where a layer was not called in the
        first step, and once it is closed; StateLostError where the optimizer's state could not be read or written.
        """
        self._refuse_closed()
        try:
            return self._optimizer.step(closure)
        finally:
            self._hooks.give_back()

    def update(self) -> None:
        """The update alone: what :meth:`step` does between the optimizer's hooks."""
        with self._watch.alone():
            self._update()

    def _update(self) -> None:
        groups = {p: number for number, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        self._refuse_closed()
        self._watch.refuse_forked()
        requirements.changes(self._model, groups, self._slots, self._gradients.of)
        self._memories.settle()
        reached = self._gradients.reached()
        # Before anything is changed, for it may refuse. A step without backward tells nothing.
        go_on = self._next(reached) if self.plan is None and reached else None
        changed = [p for p in groups if p.grad is not None]
        try:
            self._states.step(self._gradients, groups)
        finally:
            for parameter in changed:
                increment_version(parameter)  # a graph from before must not be run any more
            if self._shadow is not None:
                self._shadow.outdate()
        self._gradients.forget()
        self._steps += 1
        if go_on is not None:
            go_on()

    def state_dict(self) -> dict[str, Any]:
        """Those of the model and of the optimizer, which plain ones load: ``{"model": ..., "optimizer": ...}``."""
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` gave, or the states of a plain model and optimizer by the same names."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def report(self) -> Report:
        """What was planned, and what has been copied since."""
        copied = None if self._shadow is None else self._shadow.copied
        taken: Taken = self._gradients.taken
        return Report(
            [layer.name for layer in self._layers],
            self._costs,
            self.plan,
            not self._memories.measures,
            MACHINE.name,
            self._steps,
            0 if copied is None else copied.layers,
            0 if copied is None else copied.nbytes,
            taken.moved,
            taken.early,
            taken.copied,
            self._states.bytes_written,
            self._states.bytes_read,
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the planned iteration as it is predicted: see :func:`fastio.hybrid.plot.draw`. HybridError before."""
        from fastio.hybrid.plot import draw
        from fastio.hybrid.simulation.timeline import iterate

        if self.plan is None or self._costs is None:
            raise HybridError("nothing is planned yet: train a step first")
        told = "measured here" if self._memories.measures else f"simulated for {MACHINE.name}"
        timeline = iterate(self._costs, self.plan)
        draw({"planned iteration": timeline}, path, f"{told}; without the update", [one.name for one in self._layers])

    def close(self) -> None:
        """Let go of model and optimizer, which are then torch's own. Parameters stay in host memory. Twice is fine."""
        if self._finalizer.alive:
            self._watch.close()
            self._hooks.close()
            self._gradients.close()
            self._states.close()
            self._finalizer()

    def __enter__(self) -> Hybrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def states(self) -> States:
        """Where the optimizer's state is."""
        return self._states

    def _refuse_closed(self) -> None:
        if not self._finalizer.alive:
            raise HybridError("this Hybrid is closed: make another, or call the optimizer's own step")

    def _next(self, reached: set[torch.Tensor]) -> Callable[[], None]:
        """What is to be done when this step is over: from the first to those that are measured, and to the plan."""
        if self._measuring is None:
            layers = as_called(self._model, self._layers, self._survey.order, reached)
            requirements.budget([(layer.name, layer.nbytes) for layer in layers], self._budget)
            if self._memories.measures:
                return lambda: self._listen(layers, copied=False)
            works = [self._survey.work(layer) for layer in layers]
            return self._planned(layers, [machines.costs(work, MACHINE, self._reserve < 1) for work in works])
        if self._in_place is None:
            return lambda: self._listen(self._layers, copied=True)
        return self._planned(self._layers, measured(self._layers, self._in_place, self._measuring))

    def _listen(self, layers: list[Layer], copied: bool) -> None:
        """Measure the next step."""
        self._take_over(layers)
        self._in_place, self._measuring = self._measuring, Measuring(layers, self._vector, self._memories, copied)
        self._shadow = self._watch.passes = self._gradients.listener = self._measuring
        self._gradients.put_on_host(self._gradients.slots if self._reserve < 1 or not copied else ())

    def _planned(self, layers: list[Layer], costs: list[LayerCosts]) -> Callable[[], None]:
        chosen = plan(costs, self._planner, self._budget, self._reserve)
        return lambda: self._adopt(layers, costs, chosen)

    def _adopt(self, layers: list[Layer], costs: list[LayerCosts], chosen: Plan) -> None:
        """From now on, train by this plan."""
        self._take_over(layers)
        self._costs, self.plan = costs, chosen
        for layer, mode in zip(layers, chosen.modes, strict=True):
            layer.mode = mode
        late = [layers[copy.layer] for copy in copies(costs, chosen.modes, forward_ends(costs, chosen.modes))]
        self._in_place = self._measuring = self._gradients.listener = None
        self._shadow = self._watch.passes = Shadow(layers, self._vector, self._memories, late)
        on_device = {
            slot.parameter
            for number, layer in enumerate(layers)
            if number not in chosen.gradients_on_host
            for slot in layer.slots
        }
        # Of what belongs to no layer nothing is reserved.
        self._gradients.put_on_host(
            slot for slot in self._gradients.slots if self._reserve < 1 and slot.parameter not in on_device
        )

    def _take_over(self, layers: list[Layer]) -> None:
        self._layers = layers
        for layer in layers:
            for slot in layer.slots:
                slot.layer = layer


def _nothing() -> None:
    """Nothing to close."""
