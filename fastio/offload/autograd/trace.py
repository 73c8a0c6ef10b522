"""What a forward pass told of the tensors that it saved. Times are seconds, sizes bytes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace

import torch

from fastio.offload.planning.overlap import ActivationProfile

DISK, HOST = "disk", "host"  # the tiers
LATENCY_S = 0.001  # what a transfer may take beyond its bytes' share


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
    pack_s: list[float] = field(default_factory=list)  # the codec's time
    ratio: list[float] = field(default_factory=list)  # raw bytes over stored bytes
    tiers: list[str] = field(default_factory=list)  # where they went; "": nowhere
    uses: list[int] = field(default_factory=list)
    used_s: dict[int, float] = field(default_factory=dict)  # first uses: seconds of compute since backward began
    forward_s: float = 0.0  # without what moving out took
    working_set: int = 0  # bytes of the blobs that one operator saved, of the operator with the most

    def blobs(self, hosted: Collection[int] = ()) -> list[ActivationProfile]:
        """As the planner takes them, if those that are ``hosted`` go to host memory and all others to the disk.

        One that went elsewhere in this pass is taken to move at the pace that others had there; and so is one that took
        more than twice as long as that: devices hesitate at times, which says nothing of the blob.
        """
        pace = self._pace()
        blobs: list[ActivationProfile] = []
        for i, (made, kind, ratio) in enumerate(zip(self.made, self.kinds, self.ratio, strict=True)):
            tier = HOST if i in hosted else DISK
            moving_s = self.transfer_s[i] - self.pack_s[i]
            if tier in pace:
                usual_s = made.nbytes / ratio * pace[tier]
                if self.tiers[i] != tier or moving_s > 2 * usual_s + LATENCY_S:
                    moving_s = usual_s
            blobs.append(ActivationProfile(made.nbytes, (self.pack_s[i] + moving_s) * ratio, ratio, made.ready_s, kind))
        return blobs

    def without_codec(self, pace: float | None = None) -> Trace:
        """The same pass, had nothing been encoded: at ``pace`` bytes/s to the disk, or else as fast as it went."""
        moving_s = [all_s - pack_s for all_s, pack_s in zip(self.transfer_s, self.pack_s, strict=True)]
        raw_s = [seconds * ratio for seconds, ratio in zip(moving_s, self.ratio, strict=True)]
        if pace is not None:
            raw_s = [made.nbytes / pace for made in self.made]
        count = len(self.made)
        return replace(self, transfer_s=raw_s, pack_s=[0.0] * count, ratio=[1.0] * count)

    def stored(self) -> list[float]:
        """The bytes of each blob as it travels."""
        return [made.nbytes / ratio for made, ratio in zip(self.made, self.ratio, strict=True)]

    def away_s(self) -> list[float]:
        """Seconds of compute between the making of each blob and its use in backward; infinite where there was none."""
        return [self.forward_s - made.ready_s + self.used_s.get(i, math.inf) for i, made in enumerate(self.made)]

    def order(self) -> list[int]:
        """The order in which backward asks for blobs: as recorded, or else in reverse."""
        return list(self.uses) or list(range(len(self.made) - 1, -1, -1))

    def _pace(self) -> dict[str, float]:
        """Seconds a byte in each tier that something went to: the median, by bytes."""
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for tier, stored, all_s, pack_s in zip(self.tiers, self.stored(), self.transfer_s, self.pack_s, strict=True):
            if tier and stored > 0:
                known[tier].append(((all_s - pack_s) / stored, stored))
        return {tier: _weighted_median(paces) for tier, paces in known.items()}


def _weighted_median(weighted: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return 0.0


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
