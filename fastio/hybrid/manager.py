"""Hybrid: trains a model whose parameters are in host memory, with a plan for each layer (MemFerry)."""

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

from fastio.arguments import Path, Size
from fastio.errors import kind_of
from fastio.hybrid import requirements
from fastio.hybrid.errors import HybridError
from fastio.hybrid.first_step import FirstStep
from fastio.hybrid.host_copy import host_copy_for
from fastio.hybrid.measuring import StepTimer, measured_costs
from fastio.hybrid.memory.device_memory import DeviceMemory, device_memory_for
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.gradient_copies import CopyCounts, GradientCopies
from fastio.hybrid.memory.layers import Layer, Slot, in_call_order, move_to_host, parameter_groups
from fastio.hybrid.memory.shadow_model import ShadowModel
from fastio.hybrid.module_hooks import ModuleHooks
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer, check_optimizer, settings_of, state_to_host
from fastio.hybrid.optimizer.optimizer_hooks import OptimizerHooks, refuse_hooked
from fastio.hybrid.optimizer.ssd_states import SsdStates
from fastio.hybrid.optimizer.update_states import States
from fastio.hybrid.planning.backward_prefetch import copies
from fastio.hybrid.planning.costs import LayerCosts, forward_ends
from fastio.hybrid.planning.plan import Plan, Planner, PlannerName, check_settings, plan
from fastio.hybrid.report import Report
from fastio.hybrid.simulation import machines
from fastio.offload.autograd.hooks import mark_exchanged
from fastio.offload.stores.block_store import BlockStore
from fastio.runtime.uncopied import Uncopied
from fastio.sizes import format_size, parse_size

_NOT_REDUCED = "call the model in torch.nn.parallel.DistributedDataParallel(model), which averages gradients"
MACHINE = machines.A100  # its simulated costs are used if this machine cannot be measured


class Hybrid(Uncopied):
    """Keeps parameters and the optimizer's work in host memory, and moves parameters to the GPU by a plan.

    ::

        hybrid = fastio.Hybrid(model, optimizer, gpu_budget="8GiB")
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss = loss_of(model(inputs), labels)
            loss.backward()
            hybrid.step()

    ``optimizer``: torch's Adam, AdamW or SGD over parameters of the model. ``hybrid.step()`` is ``optimizer.step()``,
    which now updates on the CPU, in host memory, with the optimizer's own settings. ``fused=True`` is fastest: torch's
    fused kernels. If ``fused`` is not set, the CPU implementation of plain training is used, because fused kernels
    round differently and the bits are to match plain training (on a GPU they do not match anyway: there fused is the
    default). ``gpu_budget``: bytes, or "8GiB", of parameters on the GPU. ``gradient_reserve``: the share of all
    gradient bytes that may stay there, 0 to 1. ``planner``: see :func:`fastio.hybrid.plan`. ``optimizer_store``: a
    folder (or block devices, see :class:`fastio.offload.BlockStore`) for the optimizer's state; gradients in host
    memory are then pages of a file there.

    ``process_group``: the ranks of one machine, one process each, that share one host copy of parameters, gradients and
    optimizer state, as many bytes as one rank would have; each updates its slice. All of them make a Hybrid of the same
    model and optimizer, with the values of the first rank, train the model in DistributedDataParallel, and step
    together; all trainable parameters must be in ``optimizer``. What one rank writes to a parameter, all see. A rank
    that ends makes the next step of the others raise HybridError; one that is silent does so after the time limit of
    the group, which must be able to exchange CPU tensors (gloo). Without it, each rank has a copy of its own.

    ``device``: "cuda" is the default if there is one. "cpu" uses two buffers of host memory as the two memories, and
    plans with simulated costs. The model's buffers are moved to the device; the caller moves the inputs.

    The first step finds out which layers run. Without a GPU the plan follows it; with a GPU, two more steps are
    measured first. All of them are training steps, and values are those of plain training throughout. Parameters stay
    the same objects with the same names. ``state_dict`` and ``load_state_dict`` of model and optimizer, gradient
    accumulation, clipping, autocast, tied and frozen parameters and DistributedDataParallel work as before. Threads
    that use the model take turns: a forward pass during another thread's pass or update raises HybridError. A ``grad``
    kept beyond ``zero_grad`` may be overwritten by the next backward pass. torch.compile is not supported. Backward
    reads what forward read, so copies for backward only (DFGB) are useless, under other saved-tensor hooks than
    Offload's (checkpointing), under ``disable_saved_tensors_hooks``, and on torch 2.6, which does not report hooks.
    ``torch.func.grad``, ``vjp``, ``jacrev`` and ``hessian`` of a model with copied layers raise torch's RuntimeError,
    because they allow no copies into existing memory.

    Raises GpuBudgetError, HybridError, TypeError and ValueError for what it cannot train; the message says what to
    change.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        gpu_budget: Size | None = None,
        gradient_reserve: float = 1.0,
        planner: PlannerName | Planner = "memferry",
        optimizer_store: Path | Sequence[Path] | None = None,
        device: torch.device | str | None = None,
        process_group: Any = None,
    ) -> None:
        if not isinstance(model, Module):
            raise TypeError(f"model is {kind_of(model)}: expected a torch.nn.Module")
        check_optimizer(optimizer)
        refuse_hooked(optimizer)
        check_settings(planner, gradient_reserve)
        self._budget = parse_size(gpu_budget, "gpu_budget")
        self._reserve = gradient_reserve
        self._planner = planner
        self._model = model
        self._optimizer = optimizer
        self._device_memory: DeviceMemory = device_memory_for(device)
        self._host_copy = host_copy_for(process_group)
        ranks = self._host_copy.ranks
        with ranks.together("making a Hybrid", "make the same model and optimizer on every rank") as values:
            requirements.check_parameters(model, optimizer)
            self._host_copy.check(model, optimizer, gradient_reserve, optimizer_store)
            groups = parameter_groups(model)
            requirements.check_held(groups, [one._slots for one in _live])
            sizes = [(name, sum(p.numel() * p.element_size() for _, p in own)) for name, _, own in groups]
            requirements.check_budget(sizes, self._budget)
            for name, p in (pair for *_, own in groups for pair in own):
                trainable = "trainable" if p.requires_grad else "frozen"
                values[name] = f"{trainable} {p.dtype}, shape {tuple(p.shape)}, strides {p.stride()}"
            values.update(settings_of(optimizer))
        store = None if optimizer_store is None else BlockStore(optimizer_store)
        self._finalizer = weakref.finalize(self, store.close if store is not None else _nothing)

        with ranks.together("moving parameters to shared memory"):
            self._layers, self._flat_buffer = move_to_host(groups, self._device_memory, ranks)
        slots = [slot for layer in self._layers for slot in layer.slots]
        self._slots: dict[torch.Tensor, Slot] = {slot.parameter: slot for slot in slots}
        trained = [slot for slot in slots if slot.parameter.requires_grad]
        folder = store.places[0] if store is not None and os.path.isdir(store.places[0]) else None
        self._gradients = GradientCopies(
            trained,
            FlatBuffer(self._flat_buffer.nbytes, self._device_memory, ranks, folder),
            self._device_memory,
            list(model.modules()),
            shared=self._host_copy.is_shared,
        )
        if gradient_reserve < 1:
            self._gradients.put_on_host(trained)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(self._device_memory.device)
        state_to_host(optimizer)
        cpu_optimizer = CpuOptimizer(optimizer, fuse=self._device_memory.pin_for is not None)
        gradients = list(self._gradients.by_parameter.values())
        self._states: States
        if store is not None:
            self._states = SsdStates(store, optimizer, cpu_optimizer, gradients)
        else:
            self._states = self._host_copy.states(optimizer, cpu_optimizer, gradients)
        self.plan: Plan | None = None
        self._costs: list[LayerCosts] | None = None
        self._steps = 0
        self._first_step = FirstStep()
        self._in_place_timer: StepTimer | None = None  # the first of the two measured steps, once it ended
        self._timer: StepTimer | None = None  # the step that is measured now
        self._shadow: ShadowModel | None = None
        forked_too = store is None and not self._host_copy.is_shared
        self._module_hooks = ModuleHooks(model.modules(), self._first_step, None if forked_too else os.getpid())
        self._optimizer_hooks = OptimizerHooks(optimizer, self)
        self._at_close: Report | None = None
        self._release = self._host_copy.releaser(self, self._slots, self._flat_buffer, self._states)
        _live.add(self)

    def __repr__(self) -> str:
        budget = "no limit" if self._budget is None else format_size(self._budget)
        planner = self._planner if isinstance(self._planner, str) else getattr(self._planner, "__name__", "a function")
        state = "closed" if not self._finalizer.alive else "not planned yet" if self.plan is None else "planned"
        return (
            f"<fastio Hybrid of {type(self._model).__name__} on {self._device_memory.device}: GPU budget {budget}, "
            f"planner {planner}, layers: {len(self._layers)}, steps: {self._steps}, {state}>"
        )

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the parameters with their gradients, on the CPU; what ``optimizer.step`` does.

        Raises HybridError if parameters were added, replaced or moved, if a layer was not called in the first step, and
        after ``close``. Raises StateLostError if the optimizer's state could not be read or written.
        """
        self._refuse_closed()
        try:
            return self._optimizer.step(closure)
        finally:
            self._optimizer_hooks.restore_parameters()

    def update(self) -> None:
        """Update the parameters only: what :meth:`step` does between the optimizer's hooks."""
        with self._module_hooks.exclusive():
            self._update()

    def _update(self) -> None:
        groups = {p: number for number, group in enumerate(self._optimizer.param_groups) for p in group["params"]}
        self._refuse_closed()
        self._module_hooks.refuse_forked()
        with self._host_copy.ranks.together("a step", _NOT_REDUCED) as values:  # after it, no rank reads parameters
            requirements.check_unchanged(self._model, groups, self._slots, self._gradients.by_parameter)
            self._gradients.finish_moves()
            self._device_memory.synchronize()
            reached = self._gradients.reached_parameters()
            # Before anything is changed, because it may raise. A step without backward gives no information.
            next_phase = self._next_phase(reached) if self.plan is None and reached else None
            if not self._steps:
                values.update(self._host_copy.to_compare(slot for p, slot in self._slots.items() if p in groups))
        changed = [p for p in groups if p.grad is not None]
        try:
            self._states.step(self._gradients, groups)
        finally:
            for parameter in changed:
                increment_version(parameter)  # graphs from before the update must raise in backward
            if self._shadow is not None:
                self._shadow.invalidate_copies()
        self._gradients.end_step()
        self._steps += 1
        if next_phase is not None:
            next_phase()

    def state_dict(self) -> dict[str, Any]:
        """Return ``{"model": ..., "optimizer": ...}``, which a plain model and optimizer can load."""
        return {"model": self._model.state_dict(), "optimizer": self._optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the result of :meth:`state_dict`, or the states of a plain model and optimizer under the same names."""
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])

    def report(self) -> Report:
        """Return what was planned, and what has been copied since."""
        if self._at_close is not None:
            return self._at_close
        copied = None if self._shadow is None else self._shadow.copied
        taken: CopyCounts = self._gradients.counts
        return Report(
            [layer.name for layer in self._layers],
            self._costs,
            self.plan,
            not self._device_memory.measures,
            MACHINE.name,
            self._steps,
            0 if copied is None else copied.layers,
            0 if copied is None else copied.nbytes,
            taken.moved,
            taken.beside,
            taken.early,
            taken.copied,
            self._states.bytes_written,
            self._states.bytes_read,
        )

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw the predicted timeline of the plan: see :func:`fastio.hybrid.plot.draw`. HybridError before planning."""
        from fastio.hybrid.plot import draw
        from fastio.hybrid.simulation.timeline import iterate

        if self.plan is None or self._costs is None:
            raise HybridError("nothing is planned yet: train a step first")
        source = "measured here" if self._device_memory.measures else f"simulated for {MACHINE.name}"
        timeline = iterate(self._costs, self.plan)
        name = f"planned iteration, {source}"
        draw({name: timeline}, path, f"{source}; without the update", [one.name for one in self._layers])

    def close(self) -> None:
        """Release the model and the optimizer; parameters stay in host memory. May be called twice."""
        if self._finalizer.alive:
            self._module_hooks.close()
            self._optimizer_hooks.close()
            self._gradients.close()
            for layer in self._layers:
                for slot in layer.slots:
                    mark_exchanged(slot.device_view, exchanged=False)
            self._at_close = self.report()
            self._release()
            self._drop_memory()
            self._finalizer()

    def __enter__(self) -> Hybrid:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def states(self) -> States:
        """Where the optimizer's state is. HybridError after :meth:`close`, when it is the optimizer's own again."""
        self._refuse_closed()
        return self._states

    def _refuse_closed(self) -> None:
        if not self._finalizer.alive:
            raise HybridError("this Hybrid is closed: make another, or call the optimizer's own step")

    def _drop_memory(self) -> None:
        """Drop every reference to the host copy, which may be shared."""
        self._module_hooks.listener = self._first_step
        self._slots.clear()
        for layer in self._layers:
            layer.slots.clear()
            layer.runs.clear()
            layer.device_copy = None
        self._shadow = self._timer = self._in_place_timer = None
        del self._flat_buffer, self._gradients, self._states, self._release, self._host_copy

    def _next_phase(self, reached: set[torch.Tensor]) -> Callable[[], None]:
        """Return what to do after this step: measure the next step, or use a plan."""
        if self._timer is None:
            layers = in_call_order(self._model, self._layers, self._first_step.order, reached)
            requirements.check_budget([(layer.name, layer.nbytes) for layer in layers], self._budget)
            if self._device_memory.measures:
                return lambda: self._measure_next_step(layers, copied=False)
            works = [self._first_step.work(layer) for layer in layers]
            return self._make_plan(layers, [machines.costs(work, MACHINE) for work in works])
        if self._in_place_timer is None:
            return lambda: self._measure_next_step(self._layers, copied=True)
        return self._make_plan(self._layers, measured_costs(self._layers, self._in_place_timer, self._timer))

    def _measure_next_step(self, layers: list[Layer], copied: bool) -> None:
        """Measure the next step."""
        self._set_layers(layers)
        self._in_place_timer, self._timer = (
            self._timer,
            StepTimer(layers, self._flat_buffer, self._device_memory, copied),
        )
        self._shadow = self._module_hooks.listener = self._gradients.listener = self._timer

    def _make_plan(self, layers: list[Layer], costs: list[LayerCosts]) -> Callable[[], None]:
        chosen = plan(costs, self._planner, self._budget, self._reserve)
        return lambda: self._use_plan(layers, costs, chosen)

    def _use_plan(self, layers: list[Layer], costs: list[LayerCosts], chosen: Plan) -> None:
        """Train by this plan from now on."""
        self._set_layers(layers)
        self._costs, self.plan = costs, chosen
        for layer, mode in zip(layers, chosen.modes, strict=True):
            layer.mode = mode
        backward_layers = [
            layers[copy.layer] for copy in copies(costs, chosen.modes, forward_ends(costs, chosen.modes))
        ]
        self._in_place_timer = self._timer = self._gradients.listener = None
        self._shadow = self._module_hooks.listener = ShadowModel(
            layers, self._flat_buffer, self._device_memory, backward_layers
        )
        on_device = {
            slot.parameter
            for number, layer in enumerate(layers)
            if number not in chosen.gradients_on_host
            for slot in layer.slots
        }
        # Gradients of parameters in no layer are not in the reserve.
        self._gradients.put_on_host(
            slot for slot in self._gradients.slots if self._reserve < 1 and slot.parameter not in on_device
        )

    def _set_layers(self, layers: list[Layer]) -> None:
        self._layers = layers
        for layer in layers:
            for slot in layer.slots:
                slot.layer = layer


_live: weakref.WeakSet[Hybrid] = weakref.WeakSet()  # a closed one has no parameters


def _nothing() -> None:
    """Stands in for closing a store."""
