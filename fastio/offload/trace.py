"""What a forward pass told of the tensors that it saved. Times are seconds, sizes bytes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from fastio.offload.overlap import Blob


@dataclass(frozen=True, slots=True)
class Made:
    """What a step knows of a blob, also after the graph let go of it."""

    nbytes: int
    dtype: torch.dtype
    ready_s: float  # since the forward pass began, without the time that it waited for transfers

    def like(self, other: Made) -> bool:
        """Whether a plan for the one serves the other."""
        return self.nbytes == other.nbytes and self.dtype == other.dtype


@dataclass
class Trace:
    """What a forward pass told: the blobs in the order they were made, and the order backward asks for them."""

    made: list[Made] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    transfer_s: list[float] = field(default_factory=list)  # as stored, the codec's time included
    ratio: list[float] = field(default_factory=list)  # raw bytes over stored bytes
    uses: list[int] = field(default_factory=list)
    forward_s: float = 0.0

    def blobs(self) -> list[Blob]:
        """As the planner takes them."""
        return [
            Blob(made.nbytes, seconds * ratio, ratio, made.ready_s, kind)
            for made, seconds, ratio, kind in zip(self.made, self.transfer_s, self.ratio, self.kinds, strict=True)
        ]


def kind_of(module: str, dtype: torch.dtype) -> str:
    """The kind of layer whose input a tensor is, from the class of the module that saved it; indices are no input."""
    if not (dtype.is_floating_point or dtype.is_complex):
        return ""
    if module.startswith("Conv"):
        return "conv"
    return "pool" if "Pool" in module else module.lower()


def graver(one: str, other: str) -> str:
    """The kind that decides, where two layers save the same bytes: a convolution, then pooling, then the first."""
    return next((kind for kind in ("conv", "pool") if kind in (one, other)), one)
