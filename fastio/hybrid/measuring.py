"""Measures what each layer costs on this machine, in two ordinary training steps (MemFerry, section IV-B).

In one step all layers are read in place. In the other each layer is copied to the device when it is used, in forward
and backward, and released at once: that fits any budget with room for the largest layer. The values are the same in
both. The time that gradients take to host memory is in neither: they move beside backward.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from fastio.hybrid.memory.device_memory import DeviceMemory
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.layers import Layer, Slot
from fastio.hybrid.memory.shadow_model import ShadowModel, switch_back
from fastio.hybrid.planning.costs import DHA, GFGB, LayerCosts

Interval = tuple[Any, Any]


class StepTimer(ShadowModel):
    """Measures one step: a listener of forward passes and gradients (``gradient_copies.GradientListener``)."""

    def __init__(
        self, layers: Sequence[Layer], flat_buffer: FlatBuffer, device_memory: DeviceMemory, copied: bool
    ) -> None:
        for layer in layers:
            layer.mode = DHA
        super().__init__(layers, flat_buffer, device_memory)
        self._copies = copied
        self._layers = layers
        for layer in layers:
            layer.mode = GFGB if copied else DHA
        self._inside: list[Layer] = []  # layers whose modules run, innermost last
        self._last: Layer | None = None  # the layer that ran last
        self._since: Any = None
        self.forward: dict[Layer, list[Interval]] = defaultdict(list)
        self.between: dict[Layer, list[Interval]] = defaultdict(list)
        self.copying: dict[Layer, list[Interval]] = defaultdict(list)
        self.begun: dict[Layer, Any] = {}  # when its backward began
        self.over: dict[Layer, Any] = {}  # when its backward ended
        self._earlier: list[dict[Layer, int]] = []  # number of intervals before this pass

    def begin(self, module: Module) -> None:
        """Begin a pass. Layers are copied when they are used."""
        self._since, self._last = None, None
        self._earlier = [{layer: len(seen) for layer, seen in one.items()} for one in self._intervals()]

    def enter(self, module: Module) -> None:
        """Assign the time so far to the layer around this one, or to the gap between two layers."""
        layer = self._by_module.get(id(module))
        if layer is not None:
            self._account()
            if self._copies:
                self._copy_in(layer)
            self._inside.append(layer)
        super().enter(module)
        self._since = self._device_memory.record_time() if layer is not None else self._since

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """Assign the time so far to this layer."""
        layer = self._by_module.get(id(module))
        super().leave(module, arguments, output)
        if layer is None:
            return
        self._account()
        self._inside.remove(layer)
        self._last = layer
        for tensor in tree_leaves(output):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                tensor.register_hook(lambda grad: self._backward_begins(layer))
                break
        if layer not in self._inside:
            self._return_to_host(layer)

    def abort(self) -> None:
        """Abort the pass: free the device memory of all layers and discard the times of this pass."""
        super().abort()
        for one, earlier in zip(self._intervals(), self._earlier, strict=True):
            for layer, seen in one.items():
                del seen[earlier.get(layer, 0) :]
        self._inside.clear()
        self._since, self._last = None, None
        for layer in self._layers:
            self._free_device_memory(layer)

    def current(self, slot: Slot) -> torch.Tensor:
        """Return the parameter for backward, copied again if layers are copied."""
        if self._copies:
            self._copy_in(slot.layer)
        return super().current(slot)

    def gradient_ready(self, slot: Slot) -> None:
        """Record the end of a layer's backward."""
        self.over[slot.layer] = self._device_memory.record_time()

    def invalidate_copies(self) -> None:
        """End the step: free the device memory of all layers."""
        for layer in self._layers:
            self._free_device_memory(layer)
        super().invalidate_copies()

    def seconds(self, intervals: Sequence[Interval]) -> float:
        """Return the total seconds of the intervals."""
        return sum(self._device_memory.seconds(since, until) for since, until in intervals)

    def backward_s(self, layer: Layer) -> float | None:
        """Return the seconds of a layer's backward; None if it has no gradient, or no output that has one."""
        if layer not in self.begun or layer not in self.over:
            return None
        return max(0.0, self._device_memory.seconds(self.begun[layer], self.over[layer]))

    def _intervals(self) -> tuple[dict[Layer, list[Interval]], ...]:
        return self.forward, self.between, self.copying

    def _account(self) -> None:
        now = self._device_memory.record_time()
        if self._since is not None and self._inside:
            self.forward[self._inside[-1]].append((self._since, now))
        elif self._since is not None and self._last is not None:
            self.between[self._last].append((self._since, now))
        self._since = now

    def _copy_in(self, layer: Layer) -> None:
        if layer.device_copy is None:
            began = self._device_memory.record_time()
            self._allocate_device_memory(layer)
            self._copy(layer)
            if layer.device_copy is not None:
                layer.device_copy.wait()
            ended = self._device_memory.record_time()
            self.copying[layer].append((began, ended))
            if layer in self.begun and layer not in self.over:
                self.begun[layer] = ended  # the copy is not part of backward

    def _return_to_host(self, layer: Layer) -> None:
        for slot in layer.slots:
            device = self._switched.pop(slot, None)
            if device is not None:
                switch_back(slot, device)
        self._free_device_memory(layer)

    def _backward_begins(self, layer: Layer) -> None:
        # A layer whose backward ended frees its memory when the next layer's backward begins.
        for other in self._layers:
            if other.device_copy is not None and other in self.over and other is not layer:
                self._free_device_memory(other)
        self.begun.setdefault(layer, self._device_memory.record_time())


def measured_costs(layers: Sequence[Layer], in_place: StepTimer, copied: StepTimer) -> list[LayerCosts]:
    """Return the costs measured in the two steps. Unmeasured backward counts as twice forward."""
    found = []
    for layer in layers:
        copies = copied.copying[layer]
        forward_s, in_place_s = copied.seconds(copied.forward[layer]), in_place.seconds(in_place.forward[layer])
        backward_s, in_place_backward_s = copied.backward_s(layer), in_place.backward_s(layer)
        found.append(
            LayerCosts(
                copy_s=min((copied.seconds([one]) for one in copies), default=0.0),
                forward_s=forward_s,
                forward_dha_s=in_place_s,
                backward_s=2 * forward_s if backward_s is None else backward_s,
                backward_dha_s=2 * in_place_s if in_place_backward_s is None else in_place_backward_s,
                between_s=in_place.seconds(in_place.between[layer]),
                nbytes=layer.nbytes,
            )
        )
    return found
