"""The record of one forward pass: which tensors it saved, and when. Times are seconds, sizes bytes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch

from fastio.offload.planning.layers import BackwardLayers
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.step import RecomputeOption

DISK, HOST = "disk", "host"  # the tiers
RECOMPUTED = "recomputed"  # no tier: not stored
LATENCY_S = 0.001  # allowed for a transfer beyond its bytes / bandwidth
_CONVOLUTION = re.compile("Conv(?!ert)")  # those of cuDNN, MKLDNN, MIOpen, transposed or not, have it in their names


class SavedRecord(NamedTuple):
    """Size, dtype and time of one saved tensor, kept after the graph released it."""

    nbytes: int
    dtype: torch.dtype
    ready_s: float  # since the forward pass began, without waits for transfers

    def matches(self, other: SavedRecord) -> bool:
        """Return whether a plan for the one serves the other."""
        return self.nbytes == other.nbytes and self.dtype == other.dtype


class OperatorCall(NamedTuple):
    """An operator, and the number of its call in the forward pass."""

    operator: Any
    number: int


class Maker(NamedTuple):
    """The call that made a saved tensor, and those that recompute it, if it can be recomputed."""

    call: OperatorCall
    repeated: frozenset[OperatorCall]


@dataclass
class Trace:
    """The saved tensors of a forward pass in the order they were made, and the order in which backward uses them."""

    saved: list[SavedRecord] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)  # "" until backward uses it
    transfer_s: list[float] = field(default_factory=list)  # as stored, including the codec's time
    pack_s: list[float] = field(default_factory=list)  # the codec's time
    ratio: list[float] = field(default_factory=list)  # raw bytes over stored bytes
    tiers: list[str] = field(default_factory=list)  # where each went; "": it stayed
    uses: list[int] = field(default_factory=list)
    used_s: dict[int, float] = field(default_factory=dict)  # first uses: seconds of compute since backward began
    forward_s: float = 0.0  # without the time for moving out
    working_set: int = 0  # most bytes that one operator saved
    recomputable: dict[int, RecomputeOption] = field(default_factory=dict)  # those that gave the same bits
    makers: dict[int, Maker] = field(default_factory=dict)  # if operators were recorded
    layers: BackwardLayers = field(default_factory=BackwardLayers)
    resized: frozenset[int] = frozenset()  # those whose storage the program resized before the forward pass ended

    def add(self, saved: SavedRecord) -> None:
        """Add a saved tensor, which has not moved."""
        self.saved.append(saved)
        self.kinds.append("")
        self.transfer_s.append(0.0)
        self.pack_s.append(0.0)
        self.ratio.append(1.0)
        self.tiers.append("")

    def record_operator(self, ordinal: int, operator: str, number: int) -> None:
        """Record that a node of autograd uses a saved tensor in backward: the one named ``operator``, by its number.

        Of several operators that saved the same bytes, a convolution decides, then a pooling, then the one used first.
        """
        kind = kind_of(operator, self.saved[ordinal].dtype)
        self.layers.record(len(self.uses) - 1, ordinal, kind, number)
        kinds = self.kinds[ordinal], kind
        self.kinds[ordinal] = next((kind for kind in ("conv", "pool", *kinds) if kind and kind in kinds), "")

    def follow(self, other: Trace) -> None:
        """Take over what another pass with the same saved tensors knew, for those to come too."""
        self.kinds, self.transfer_s, self.pack_s = list(other.kinds), list(other.transfer_s), list(other.pack_s)
        self.ratio, self.tiers, self.working_set = list(other.ratio), list(other.tiers), other.working_set

    def end_following(self) -> None:
        """Forget the saved tensors that were to come."""
        for known in (self.kinds, self.transfer_s, self.pack_s, self.ratio, self.tiers):
            del known[len(self.saved) :]

    def activations(self, hosted: Collection[int] = ()) -> list[ActivationProfile]:
        """Return the planner's input if the ``hosted`` tensors go to host memory and all others to the disk.

        A tensor that went to another tier in this pass gets the median speed of its new tier. So does a tensor that
        took more than twice that long: a device pauses at times, whatever it transfers.
        """
        pace = self._seconds_per_byte()
        activations: list[ActivationProfile] = []
        for i, (saved, kind, ratio) in enumerate(zip(self.saved, self.kinds, self.ratio, strict=True)):
            tier = HOST if i in hosted else DISK
            moving_s = max(0.0, self.transfer_s[i] - self.pack_s[i])
            if tier in pace:
                usual_s = saved.nbytes / ratio * pace[tier]
                if self.tiers[i] != tier or moving_s > 2 * usual_s + LATENCY_S:
                    moving_s = usual_s
            activations.append(
                ActivationProfile(saved.nbytes, (self.pack_s[i] + moving_s) * ratio, ratio, saved.ready_s, kind)
            )
        return activations

    def without_codec(self, pace: float | None = None) -> Trace:
        """Return the same pass without encoding: at ``pace`` bytes/s to the disk, or at the measured speed if None."""
        moving_s = [max(0.0, all_s - pack_s) for all_s, pack_s in zip(self.transfer_s, self.pack_s, strict=True)]
        raw_s = [seconds * ratio for seconds, ratio in zip(moving_s, self.ratio, strict=True)]
        if pace is not None:
            raw_s = [saved.nbytes / pace for saved in self.saved]
        count = len(self.saved)
        return replace(self, transfer_s=raw_s, pack_s=[0.0] * count, ratio=[1.0] * count)

    def stored(self) -> list[float]:
        """Return the stored bytes of each saved tensor."""
        return [saved.nbytes / ratio for saved, ratio in zip(self.saved, self.ratio, strict=True)]

    def away_s(self) -> list[float]:
        """Return the compute seconds between making each tensor and its use in backward; infinite if never used."""
        return [self.forward_s - saved.ready_s + self.used_s.get(i, math.inf) for i, saved in enumerate(self.saved)]

    def order(self) -> list[int]:
        """Return the order in which backward uses the tensors: as recorded, or else in reverse."""
        return list(self.uses) or list(range(len(self.saved) - 1, -1, -1))

    def timed_uses(self, pace: float) -> list[tuple[float, int]]:
        """Return the uses in backward, in order, and when: ``pace`` times the seconds of compute that were recorded."""
        now = 0.0
        uses: list[tuple[float, int]] = []
        for i in self.order():
            now = max(now, self.used_s.get(i, 0.0) * pace)
            uses.append((now, i))
        return uses

    def _seconds_per_byte(self) -> dict[str, float]:
        """Return the median seconds per byte of each tier that was written to, weighted by bytes."""
        known: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for tier, stored, all_s, pack_s in zip(self.tiers, self.stored(), self.transfer_s, self.pack_s, strict=True):
            if tier and stored > 0:
                known[tier].append((max(0.0, all_s - pack_s) / stored, stored))
        return {tier: _weighted_median(paces) for tier, paces in known.items()}


def _weighted_median(weighted: list[tuple[float, float]]) -> float:
    half = sum(weight for _, weight in weighted) / 2
    for value, weight in sorted(weighted):
        half -= weight
        if half <= 0:
            return value
    return 0.0


def kind_of(operator: str, dtype: torch.dtype) -> str:
    """Return the kind of layer whose feature map a tensor is, by the node of autograd that saved it; "" for indices.

    ``F.conv2d`` counts as ``nn.Conv2d`` does, and so do functions of the user with such names.
    """
    if not (dtype.is_floating_point or dtype.is_complex):
        return ""
    name = operator.split("Backward", maxsplit=1)[0]
    if _CONVOLUTION.search(name):
        return "conv"
    return "pool" if "Pool" in name else name.lower()
