"""The shadow model: one logical model whose parameters lie in host or device memory by mode and phase (section IV-C).

A parameter's ``data`` is its host memory. Only during a forward pass is it the device's, for layers that were copied
(GFGB); backward reads what autograd saved of a parameter from the device where a copy is there. So whatever else looks
at a parameter, or writes to it between passes, is at the one copy that counts, and a copy is never older than the
forward pass that it was made for. No copy is made that the plan does not order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from fastio.hybrid.memory.device_memory import Memories
from fastio.hybrid.memory.flat_buffer import ALIGNMENT, HostVector, shaped
from fastio.hybrid.memory.layers import Layer, Slot
from fastio.hybrid.memory.saved_parameters import Saved
from fastio.hybrid.planning.costs import DFGB, DHA, GFGB
from fastio.offload.autograd.hooks import TELLS_OF_HOOKS, PushedHooks, allows_hooks, top_hooks


@dataclass
class Copied:
    """Copies of parameters to the device since the plan was made."""

    layers: int = 0
    nbytes: int = 0


class Shadow:
    """Runs a plan: listens to forward passes (see :class:`fastio.hybrid.module_hooks.Passes`).

    ``late``: the DFGB layers in the order of their copies. Device memory is taken here, once, for every layer that is
    copied; ``vector`` is what the layers' parameters lie in.
    """

    def __init__(
        self, layers: Sequence[Layer], vector: HostVector, memories: Memories, late: Sequence[Layer] = ()
    ) -> None:
        self._memories = memories
        self._vector = vector
        self._late = late
        self._waiting: deque[Layer] = deque()
        self._done: set[int] = set()
        self._by_module = {id(layer.module): layer for layer in layers}
        self._below: dict[int, list[Layer]] = {}
        self._switched: list[Slot] = []
        self._hooked: list[bool] = []  # whether hooks were pushed for the modules that run, innermost last
        self._hooks = PushedHooks()
        self._saved = Saved(self)
        self._places: dict[int, tuple[list[int], list[Slot]]] = {}
        self.copied = Copied()
        for layer in layers:
            if layer.mode != DHA:
                self._give_device_memory(layer)

    def begin(self, module: Module) -> None:
        """Copy the GFGB layers, in order. Inside backward (a recomputation) what is on the device is still right."""
        if _in_backward():
            return
        layers = self._layers_below(module)
        for layer in layers:
            layer.arrival = None
        for layer in layers:
            if layer.mode == GFGB:
                self._copy(layer)
        self._waiting = deque(layer for layer in self._late if layer in layers)
        self._done.clear()

    def enter(self, module: Module) -> None:
        """Switch a copied layer to the device, and see to what autograd saves of it."""
        layer = self._by_module.get(id(module))
        is_copied = layer is not None and layer.mode != DHA
        if layer is not None and layer.mode == GFGB and layer.arrival is not None:
            if any(slot.parameter._version != slot.version for slot in layer.slots):  # written to since
                self._copy(layer)
            layer.arrival.wait()
            for slot in layer.slots:
                if slot.device is not None:
                    self._switched.append(slot)
                    slot.parameter.data = slot.device
        # Hooks of somebody else's see more than parameters. They go first; backward then reads host memory.
        self._hooked.append(is_copied and torch.is_grad_enabled() and _no_other_hooks())
        if self._hooked[-1]:
            self._hooks.push(self._saved.pack, self._saved.unpack)

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """Begin the copies for backward that have their turn."""
        if self._hooked.pop():
            self._hooks.pop()
        layer = self._by_module.get(id(module))
        if layer is not None and layer.mode == DFGB and torch.is_grad_enabled() and not _in_backward():
            self._done.add(id(layer))
            while self._waiting and id(self._waiting[0]) in self._done:
                self._copy(self._waiting.popleft())

    def end(self) -> None:
        """Put everything back to host memory, with what the pass wrote to it (``max_norm``, a clamped weight)."""
        for layer in self._waiting:  # behind one that was not called this time
            if id(layer) in self._done:
                self._copy(layer)
        self._waiting.clear()
        for slot in self._switched:
            if slot.device is not None and slot.parameter._version != slot.version:
                slot.host.copy_(slot.device)
            slot.parameter.data = slot.seen
        self._switched.clear()

    def break_off(self) -> None:
        """Put everything back to host memory, with what was written to it since; what was not begun is not copied."""
        self._hooks.pop_all()
        self._hooked.clear()
        self._waiting.clear()
        # What was given other memory since stays there, for whoever looks to complain of.
        self._switched = [
            slot
            for slot in self._switched
            if slot.device is not None and slot.parameter.data_ptr() == slot.device.data_ptr()
        ]
        for slot in self._switched:
            if slot.device is not None:
                slot.host.copy_(slot.device)
        self.end()

    def outdate(self) -> None:
        """The parameters have changed: no copy is to be used any more."""
        for layer in self._by_module.values():
            layer.arrival = None

    def find(self, tensor: torch.Tensor) -> tuple[Slot, int] | None:
        """See :class:`fastio.hybrid.memory.saved_parameters.Residence`."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return None
        if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_conj() or tensor.is_neg():
            return None
        place = self._places.get(tensor.untyped_storage().data_ptr())
        if place is None:
            return None
        starts, slots = place
        offset = tensor.storage_offset() * tensor.element_size()
        number = bisect_right(starts, offset) - 1
        return slots[number], int(offset) - starts[number]

    def now(self, slot: Slot) -> torch.Tensor:
        """See :class:`fastio.hybrid.memory.saved_parameters.Residence`."""
        if slot.device is None or slot.layer.arrival is None:
            return slot.seen
        slot.layer.arrival.wait()
        return slot.device

    def _copy(self, layer: Layer) -> None:
        for device, host in layer.runs:
            layer.arrival = self._memories.bring(device, host)  # one engine, in order: the last one tells of all
        for slot in layer.slots:
            slot.version = slot.parameter._version
        self.copied.layers += 1
        self.copied.nbytes += layer.nbytes

    def _layers_below(self, module: Module) -> list[Layer]:
        layers = self._below.get(id(module))
        if layers is None:
            inside = {id(one) for one in module.modules()}
            layers = [layer for key, layer in self._by_module.items() if key in inside]
            self._below[id(module)] = layers
        return layers

    def _give_device_memory(self, layer: Layer) -> None:
        for run in _runs(layer.slots):
            start, stop = run[0].offset, run[-1].offset + run[-1].nbytes
            device = self._memories.allocate(stop - start)
            layer.runs.append((device, self._vector.bytes(start, stop - start)))
            for slot in run:
                at = slot.offset - start
                slot.device = shaped(device[at : at + slot.nbytes], slot.host)
                self._places[slot.seen.untyped_storage().data_ptr()] = ([0], [slot])
            self._places[device.untyped_storage().data_ptr()] = ([slot.offset - start for slot in run], run)

    def _take_device_memory(self, layer: Layer) -> None:
        for device, _ in layer.runs:
            self._places.pop(device.untyped_storage().data_ptr(), None)
        layer.runs.clear()
        layer.arrival = None
        for slot in layer.slots:
            slot.device = None


def _runs(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Slots that lie one behind the other."""
    runs: list[list[Slot]] = []
    for slot in sorted(slots, key=lambda slot: slot.offset):
        last = runs[-1][-1] if runs else None
        if last is not None and last.offset + -(-last.nbytes // ALIGNMENT) * ALIGNMENT == slot.offset:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def _no_other_hooks() -> bool:
    """Whether hooks for saved tensors are allowed (``disable_saved_tensors_hooks`` forbids them), and none are active.

    Torch 2.6 does not tell whose are active: there they may be somebody's.
    """
    return TELLS_OF_HOOKS and allows_hooks() and top_hooks() is None


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
