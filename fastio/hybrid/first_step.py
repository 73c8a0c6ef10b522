"""Records the first step: which modules run, in which order, and how much work each layer does. No timing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import Module
from torch.utils._pytree import tree_leaves

from fastio.hybrid.memory.layers import Layer
from fastio.hybrid.simulation.machines import Work


class FirstStep:
    """A listener of forward passes (see :class:`fastio.hybrid.module_hooks.ForwardListener`)."""

    def __init__(self) -> None:
        self.order: list[Module] = []
        self._known: set[int] = set()
        self._moved: dict[int, int] = {}
        self._elements: dict[int, int] = {}
        self._earlier: tuple[dict[int, int], dict[int, int]] = ({}, {})

    def begin(self, module: Module) -> None:
        """See :class:`fastio.hybrid.module_hooks.ForwardListener`."""
        self._earlier = (dict(self._moved), dict(self._elements))

    def end(self) -> None:
        """See :class:`fastio.hybrid.module_hooks.ForwardListener`."""

    def abort(self) -> None:
        """Discard the counts of this pass, which will run again."""
        self._moved, self._elements = self._earlier

    def enter(self, module: Module) -> None:
        """See :class:`fastio.hybrid.module_hooks.ForwardListener`."""
        if id(module) not in self._known:
            self._known.add(id(module))
            self.order.append(module)

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """See :class:`fastio.hybrid.module_hooks.ForwardListener`."""
        inputs, outputs = list(_tensors(arguments)), list(_tensors(output))
        moved = sum(one.numel() * one.element_size() for one in (*inputs, *outputs))
        self._moved[id(module)] = self._moved.get(id(module), 0) + moved
        elements = max((one.numel() for one in outputs), default=0)
        self._elements[id(module)] = self._elements.get(id(module), 0) + elements

    def work(self, layer: Layer) -> Work:
        """Return the work of a layer in this step. A matrix product has two operations per parameter and row.

        The number of rows is the output elements over the first dimension of the layer's largest parameter. An
        embedding touches as many rows of its table as it returns.
        """
        largest = max(layer.slots, key=lambda slot: slot.nbytes).host
        elements, moved = self._elements.get(id(layer.module), 0), self._moved.get(id(layer.module), 0)
        if isinstance(layer.module, torch.nn.Embedding | torch.nn.EmbeddingBag):
            touched = min(layer.nbytes, elements * largest.element_size())
            return Work(layer.nbytes, touched, 0.0, moved, 0)
        if largest.dim() < 2:  # elementwise
            return Work(layer.nbytes, layer.nbytes, float(elements), moved, 0)
        rows = math.ceil(elements / largest.shape[0])
        return Work(layer.nbytes, layer.nbytes, 2.0 * rows * largest.numel(), moved, rows)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
