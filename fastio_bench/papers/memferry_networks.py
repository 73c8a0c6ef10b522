"""The networks of the MemFerry paper, as layers with their bytes and operations. Nothing here is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastio.hybrid.simulation.machines import Work

ITEM = 4  # bytes of a parameter: single precision
HEAD = 64  # columns of a head of attention


@dataclass(frozen=True)
class Network:
    """A transformer: ``blocks`` of width ``hidden``, feed-forward of four times that, no product with the vocabulary.

    ``paper``: the paper's speed-up over ZeRO-Offload, the least and the most.
    """

    name: str
    blocks: int
    hidden: int
    vocabulary: int
    places: int
    batch: int
    sequence: int
    paper: tuple[float, float]

    @property
    def parameters(self) -> int:
        """How many."""
        return sum(layer.nbytes for layer in self.layers()) // ITEM

    def layers(self) -> Sequence[Work]:
        """The layers in forward order: the embedding, its norm, and the matrices of each block."""
        rows = self.batch * self.sequence
        hidden, table = self.hidden, (self.vocabulary + self.places) * self.hidden
        found = [Work(table * ITEM, min(table, 2 * rows * hidden) * ITEM, 0.0, rows * hidden * ITEM), self._norm()]
        for _ in range(self.blocks):
            scores = 4.0 * rows * self.sequence * hidden  # of attention: two products for each pair of places
            found += [
                self._product(hidden, 3 * hidden),
                self._product(hidden, hidden, scores),
                self._norm(),
                self._product(hidden, 4 * hidden),
                self._product(4 * hidden, hidden),
                self._norm(),
            ]
        return found

    def activations(self, recomputed: bool) -> int:
        """Bytes that forward keeps for backward, in single precision, with dropout (masks of a byte an element).

        A block keeps 66 bytes for each row and column of the width, and 9 for each score of attention: Korthikanti et
        al., Reducing Activation Recomputation in Large Transformer Models, section 4.1, with four bytes an element
        instead of two. ``recomputed``: only the blocks' inputs are kept, and all of one block.
        """
        rows = self.batch * self.sequence
        block = rows * (66 * self.hidden + 9 * (self.hidden // HEAD) * self.sequence)
        return block + self.blocks * rows * self.hidden * ITEM if recomputed else self.blocks * block

    def _norm(self) -> Work:
        nbytes, elements = 2 * self.hidden * ITEM, self.batch * self.sequence * self.hidden
        return Work(nbytes, nbytes, 5.0 * elements, 2 * elements * ITEM)

    def _product(self, inward: int, outward: int, more: float = 0.0) -> Work:
        rows, weights = self.batch * self.sequence, inward * outward
        nbytes = (weights + outward) * ITEM
        return Work(nbytes, nbytes, 2.0 * rows * weights + more, rows * (inward + outward) * ITEM, rows)


A100_NETWORKS = (
    Network("BERT-base", 12, 768, 30522, 514, 8, 128, (1.217, 1.687)),
    Network("RoBERTa", 12, 768, 50265, 514, 8, 128, (1.217, 1.687)),
    Network("BERT-large", 24, 1024, 30522, 514, 8, 384, (1.071, 1.321)),
    Network("GPT-2-medium", 24, 1024, 50257, 1024, 8, 1024, (1.071, 1.321)),
    Network("Transformer-XL 0.7B", 12, 2048, 32768, 0, 8, 378, (1.26, 1.37)),
    Network("Transformer-XL 1.0B", 18, 2048, 32768, 0, 8, 378, (1.37, 1.37)),
    Network("Transformer-XL 2.4B", 28, 2560, 65536, 0, 8, 512, (1.26, 1.37)),
    Network("Transformer-XL 4.3B", 32, 3200, 98304, 0, 8, 512, (1.26, 1.37)),
    Network("Transformer-XL 6.7B", 31, 4096, 130528, 0, 8, 512, (1.26, 1.26)),
)
V100_NETWORKS = (
    Network("Transformer-XL 0.7B", 12, 2048, 32768, 0, 1, 378, (1.12, 1.12)),
    Network("Transformer-XL 1.0B", 18, 2048, 32768, 0, 1, 378, (1.12, 1.12)),
    Network("Transformer-XL 2.4B", 28, 2560, 65536, 0, 1, 512, (1.12, 1.12)),
)
ASSUMED = (
    "single precision; feed-forward four times the width; no product with the vocabulary; batch 8 on the A100 (the "
    "paper says so of Transformer-XL) and 1 on the V100; sequences of 128 (BERT-base, RoBERTa), 384 (BERT-large), 1024 "
    "(GPT-2) and 378 to 512 (Transformer-XL): the paper gives 378 to 4096 for the last and nothing for the others"
)
