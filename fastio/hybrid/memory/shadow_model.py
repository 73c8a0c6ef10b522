"""The shadow model: one model whose parameters are in host or device memory by mode and phase (MemFerry, section IV-C).

A parameter's ``data`` is its host memory. Only during a forward pass it is the device's, for copied layers (GFGB). In
backward, saved parameters are read from the device if a copy is there. So other code that reads or writes a parameter
between passes uses the one true copy, and a device copy is never older than the forward pass it was made for. Only the
plan causes copies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module

from fastio.hybrid.memory.device_memory import DeviceMemory
from fastio.hybrid.memory.flat_buffer import ALIGNMENT, FlatBuffer, shaped
from fastio.hybrid.memory.layers import Layer, Slot
from fastio.hybrid.memory.saved_parameters import ParameterPack
from fastio.hybrid.planning.costs import DFGB, DHA, GFGB
from fastio.offload.autograd.hooks import (
    REPORTS_TOP_HOOKS,
    PushedHooks,
    allows_hooks,
    mark_exchanged,
    top_hooks,
    unpack,
)
from fastio.offload.autograd.module_hooks import is_offloading


@dataclass
class CopyCount:
    """Copies of parameters to the device since the plan was made."""

    layers: int = 0
    nbytes: int = 0


class ShadowModel:
    """Runs a plan; a listener of forward passes (see :class:`fastio.hybrid.module_hooks.ForwardListener`).

    ``backward_layers``: the DFGB layers in the order of their copies. Device memory is allocated here, once, for every
    copied layer. ``flat_buffer`` holds the parameters.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        flat_buffer: FlatBuffer,
        device_memory: DeviceMemory,
        backward_layers: Sequence[Layer] = (),
    ) -> None:
        self._device_memory = device_memory
        self._flat_buffer = flat_buffer
        self._backward_layers = backward_layers
        self._waiting: deque[Layer] = deque()
        self._done: set[int] = set()
        self._by_module = {id(layer.module): layer for layer in layers}
        self._below: dict[int, list[Layer]] = {}
        self._switched: dict[Slot, torch.Tensor] = {}  # the memory that a parameter was given for this pass
        self._hooked: list[bool] = []  # whether hooks were pushed, per running module, innermost last
        self._hooks = PushedHooks()
        self._places: dict[int, tuple[list[int], list[Slot]]] = {}
        self.copied = CopyCount()
        for layer in layers:
            if layer.mode != DHA:
                self._allocate_device_memory(layer)

    def begin(self, module: Module) -> None:
        """Copy the GFGB layers, in order. Inside backward (a recomputation) the device copies are still valid."""
        if _in_backward():
            return
        layers = self._layers_below(module)
        for layer in layers:
            layer.device_copy = None
        for layer in layers:
            if layer.mode == GFGB:
                self._copy(layer)
        self._waiting = deque(layer for layer in self._backward_layers if layer in layers)
        self._done.clear()

    def enter(self, module: Module) -> None:
        """Switch a copied layer to the device, and push the hooks for its saved parameters."""
        layer = self._by_module.get(id(module))
        is_copied = layer is not None and layer.mode != DHA
        if layer is not None and layer.mode == GFGB and layer.device_copy is not None:
            if any(slot.parameter._version != slot.version for slot in layer.slots):  # written to since the copy
                self._copy(layer)
            layer.device_copy.wait()
            for slot in layer.slots:
                # A parameter that the program gave other memory keeps it; the next step's check reports it.
                if slot.device is not None and slot.parameter.data_ptr() in (slot.address, slot.device.data_ptr()):
                    self._switched[slot] = slot.device
                    slot.parameter.data = slot.device
        self._hooked.append(is_copied and torch.is_grad_enabled() and self._push_hooks())

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """Begin the copies for backward that are due."""
        if self._hooked.pop():
            self._hooks.pop()
        layer = self._by_module.get(id(module))
        if layer is not None and layer.mode == DFGB and torch.is_grad_enabled() and not _in_backward():
            self._done.add(id(layer))
            while self._waiting and id(self._waiting[0]) in self._done:
                self._copy(self._waiting.popleft())

    def end(self) -> None:
        """Return everything to host memory, including what the pass wrote (``max_norm``, a clamped weight)."""
        for layer in self._waiting:  # queued behind a layer that was not called this time
            if id(layer) in self._done:
                self._copy(layer)
        self._waiting.clear()
        for slot, device in self._switched.items():
            switch_back(slot, device)
        self._switched.clear()

    def abort(self) -> None:
        """Return everything to host memory, including what was written; drop copies that have not begun."""
        self._hooks.pop_all()
        self._hooked.clear()
        self._waiting.clear()
        for slot, device in self._switched.items():
            if slot.parameter.data_ptr() == device.data_ptr():
                slot.host.copy_(device)
        self.end()

    def invalidate_copies(self) -> None:
        """Make all device copies invalid: the parameters have changed."""
        for layer in self._by_module.values():
            layer.device_copy = None

    def find(self, tensor: torch.Tensor) -> tuple[Slot, int] | None:
        """See :class:`fastio.hybrid.memory.saved_parameters.ParameterLocator`."""
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

    def current(self, slot: Slot) -> torch.Tensor:
        """See :class:`fastio.hybrid.memory.saved_parameters.ParameterLocator`."""
        if slot.device is None or slot.layer.device_copy is None:
            return slot.device_view
        slot.layer.device_copy.wait()
        return slot.device

    def _push_hooks(self) -> bool:
        """Push the hooks for saved parameters, if saved-tensor hooks are allowed (``disable_saved_tensors_hooks``).

        An Offload's hooks get all other tensors. Hooks of others take precedence, because they save more than
        parameters; backward then reads host memory. So it does with torch 2.6, which does not report hooks.
        """
        if not REPORTS_TOP_HOOKS or not allows_hooks():
            return False
        top = top_hooks()
        if top is None:
            self._hooks.push(ParameterPack(self), unpack)
        elif is_offloading(top[0]):
            self._hooks.push(ParameterPack(self, top[0]), top[1])
        else:
            return False
        return True

    def _copy(self, layer: Layer) -> None:
        for device, host in layer.runs:  # one engine, in order: waiting for the last copy is enough
            layer.device_copy = self._device_memory.copy_to_device(device, host)
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

    def _allocate_device_memory(self, layer: Layer) -> None:
        for run in _runs(layer.slots):
            start, stop = run[0].offset, run[-1].offset + run[-1].nbytes
            device = mark_exchanged(self._device_memory.allocate(stop - start))
            layer.runs.append((device, self._flat_buffer.bytes(start, stop - start)))
            for slot in run:
                at = slot.offset - start
                slot.device = shaped(device[at : at + slot.nbytes], slot.host)
                self._places[slot.device_view.untyped_storage().data_ptr()] = ([0], [slot])
            self._places[device.untyped_storage().data_ptr()] = ([slot.offset - start for slot in run], run)

    def _free_device_memory(self, layer: Layer) -> None:
        for device, _ in layer.runs:
            self._places.pop(device.untyped_storage().data_ptr(), None)
        layer.runs.clear()
        layer.device_copy = None
        for slot in layer.slots:
            slot.device = None


def _runs(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Return slots grouped into runs that are contiguous in memory."""
    runs: list[list[Slot]] = []
    for slot in sorted(slots, key=lambda slot: slot.offset):
        last = runs[-1][-1] if runs else None
        if last is not None and last.offset + -(-last.nbytes // ALIGNMENT) * ALIGNMENT == slot.offset:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    return runs


def switch_back(slot: Slot, device: torch.Tensor) -> None:
    """Return a parameter to host memory, unless forward gave it memory of its own, which the next step reports."""
    if slot.parameter.data_ptr() != device.data_ptr():
        return
    if slot.parameter._version != slot.version:  # forward wrote to it
        slot.host.copy_(device)
    slot.parameter.data = slot.device_view


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
