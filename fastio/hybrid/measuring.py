"""What each layer costs on this machine, measured in two steps of training that count like any other.

In one all layers are read in place, and gradients written to host memory; in the other each layer is copied to the
device when it is used, forward and backward, and let go of at once: any budget that has room for the largest layer has
room for that. The values are the same in both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from fastio.hybrid.memory.device_memory import Memories
from fastio.hybrid.memory.flat_buffer import HostVector
from fastio.hybrid.memory.layers import Layer, Slot
from fastio.hybrid.memory.shadow_model import Shadow
from fastio.hybrid.planning.costs import DHA, GFGB, LayerCosts

Interval = tuple[Any, Any]


class Measuring(Shadow):
    """One step: listens to forward passes and gradients (:class:`fastio.hybrid.memory.gradient_copies.Listener`)."""

    def __init__(self, layers: Sequence[Layer], vector: HostVector, memories: Memories, copied: bool) -> None:
        for layer in layers:
            layer.mode = DHA
        super().__init__(layers, vector, memories)
        self._copies = copied
        self._layers = layers
        for layer in layers:
            layer.mode = GFGB if copied else DHA
        self._inside: list[Layer] = []  # the layers whose modules run, innermost last
        self._last: Layer | None = None  # the one that ran last
        self._since: Any = None
        self.forward: dict[Layer, list[Interval]] = defaultdict(list)
        self.between: dict[Layer, list[Interval]] = defaultdict(list)
        self.copying: dict[Layer, list[Interval]] = defaultdict(list)
        self.begun: dict[Layer, Any] = {}  # when backward came to it
        self.over: dict[Layer, Any] = {}  # when it had its gradients
        self._earlier: list[dict[Layer, int]] = []  # how many intervals the passes before this one have

    def begin(self, module: Module) -> None:
        """Copies are made when they are needed."""
        self._since, self._last = None, None
        self._earlier = [{layer: len(seen) for layer, seen in one.items()} for one in self._intervals()]

    def enter(self, module: Module) -> None:
        """The time so far was the layer's around this one, or between two layers."""
        layer = self._by_module.get(id(module))
        if layer is not None:
            self._account()
            if self._copies:
                self._lend(layer)
            self._inside.append(layer)
        super().enter(module)
        self._since = self._memories.mark() if layer is not None else self._since

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """The time so far was this layer's."""
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
            self._put_back(layer)

    def break_off(self) -> None:
        """The same, nothing stays on the device, and the times of this pass are forgotten: it ended anywhere."""
        super().break_off()
        for one, earlier in zip(self._intervals(), self._earlier, strict=True):
            for layer, seen in one.items():
                del seen[earlier.get(layer, 0) :]
        self._inside.clear()
        self._since, self._last = None, None
        for layer in self._layers:
            self._take_device_memory(layer)

    def now(self, slot: Slot) -> torch.Tensor:
        """Backward reads it: copied again, where layers are copied."""
        if self._copies:
            self._lend(slot.layer)
        return super().now(slot)

    def arriving(self, slot: Slot) -> None:
        """Backward is through with a parameter of a copied layer."""
        if self._copies:
            self.over[slot.layer] = self._memories.mark()

    def arrived(self, slot: Slot) -> None:
        """It is through with one that is read in place when its gradient is in host memory."""
        if not self._copies:
            self.over[slot.layer] = self._memories.mark()

    def outdate(self) -> None:
        """The step is over: nothing stays on the device."""
        for layer in self._layers:
            self._take_device_memory(layer)
        super().outdate()

    def seconds(self, intervals: Sequence[Interval]) -> float:
        """All of them together."""
        return sum(self._memories.seconds(since, until) for since, until in intervals)

    def backward_s(self, layer: Layer) -> float | None:
        """Its backward, None where it has no gradient or no output that has one."""
        if layer not in self.begun or layer not in self.over:
            return None
        return max(0.0, self._memories.seconds(self.begun[layer], self.over[layer]))

    def _intervals(self) -> tuple[dict[Layer, list[Interval]], ...]:
        return self.forward, self.between, self.copying

    def _account(self) -> None:
        now = self._memories.mark()
        if self._since is not None and self._inside:
            self.forward[self._inside[-1]].append((self._since, now))
        elif self._since is not None and self._last is not None:
            self.between[self._last].append((self._since, now))
        self._since = now

    def _lend(self, layer: Layer) -> None:
        if layer.arrival is None:
            began = self._memories.mark()
            self._give_device_memory(layer)
            self._copy(layer)
            if layer.arrival is not None:
                layer.arrival.wait()
            ended = self._memories.mark()
            self.copying[layer].append((began, ended))
            if layer in self.begun and layer not in self.over:
                self.begun[layer] = ended  # the copy is no part of backward

    def _put_back(self, layer: Layer) -> None:
        kept = [slot for slot in self._switched if slot.layer is not layer]
        for slot in self._switched:
            if slot.layer is layer:
                slot.parameter.data = slot.seen
        self._switched[:] = kept
        self._take_device_memory(layer)

    def _backward_begins(self, layer: Layer) -> None:
        # Each layer that backward is through with lets go of its memory when the next one begins.
        for other in self._layers:
            if other.arrival is not None and other in self.over and other is not layer:
                self._take_device_memory(other)
        self.begun.setdefault(layer, self._memories.mark())


def costs(layers: Sequence[Layer], in_place: Measuring, copied: Measuring) -> list[LayerCosts]:
    """What the two steps told. A layer whose backward was not seen is taken to need twice its forward."""
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
