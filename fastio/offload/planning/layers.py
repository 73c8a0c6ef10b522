"""The layers of a pass, and what vDNN does at each of them in the run (sections III-A and III-B). Pure.

A layer is an operator that saved tensors: a node of autograd. Its inputs X are the saved tensors that it reads.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from fastio.offload.planning.vdnn import find_prefetch_layer


@dataclass
class BackwardLayers:
    """The layers as one backward reached them: the kind of each, and the saved tensors that it used, by ordinal.

    ``of_use``: the layer of each use of the pass, by its place in the order of uses.
    """

    kinds: list[str] = field(default_factory=list)
    inputs: list[list[int]] = field(default_factory=list)
    of_use: dict[int, int] = field(default_factory=dict)
    _by_number: dict[int, int] = field(default_factory=dict)
    _repeats: bool = False  # a second backward runs

    def record(self, place: int, ordinal: int, kind: str, number: int) -> None:
        """Record that a layer uses a saved tensor. ``number`` is the layer's, ``kind`` that of this tensor in it."""
        layer = self._by_number.setdefault(number, len(self.kinds))
        if layer == len(self.kinds):
            self.kinds.append(kind)
            self.inputs.append([])
        self.of_use[place] = layer
        self._repeats = self._repeats or layer < len(self.kinds) - 1
        if not self._repeats:
            self.kinds[layer] = self.kinds[layer] or kind
            self.inputs[layer].append(ordinal)

    def readers(self) -> Counter[int]:
        """Return how often layers read each saved tensor in a pass: the reference counts of figure 3."""
        return Counter(ordinal for inputs in self.inputs for ordinal in inputs)


class Prefetching:
    """Which saved tensors to bring back at which layer of one backward. ``selected``: those that leave."""

    def __init__(self, layers: BackwardLayers, selected: Collection[int]) -> None:
        self._layers = layers
        self._count = len(layers.kinds)
        self._kinds = layers.kinds[::-1]  # in forward order, as the paper has it
        self._sent: list[list[int]] = []  # by layer, in forward order
        seen: set[int] = set()
        for inputs in layers.inputs:  # the last reader in forward, which sends a tensor away, is the first in backward
            own = [ordinal for ordinal in dict.fromkeys(inputs) if ordinal in selected and ordinal not in seen]
            self._sent.append(own)
            seen.update(inputs)
        self._sent.reverse()
        self._prefetched = [False] * self._count
        self._current: int | None = None

    def begin(self, place: int) -> list[int] | None:
        """Backward uses a saved tensor, at a place of the recorded order: if a layer begins, return what to prefetch.

        None: the layer has begun before, or is not known.
        """
        number = self._layers.of_use.get(place)
        if number is None or number == self._current:
            return None
        self._current = number
        layer = find_prefetch_layer(
            self._count - 1 - number, self._kinds, [bool(sent) for sent in self._sent], self._prefetched
        )
        if layer is None:
            return []
        self._prefetched[layer] = True
        return self._sent[layer]
