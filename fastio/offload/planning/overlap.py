"""Activation profiles, and whether moving some of them out hides behind the forward pass. Pure.

Units are bytes and seconds. Activations are in forward order, and one channel moves them out in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ActivationProfile:
    """One activation, as profiled.

    ``transfer_s`` is the time to move it out uncompressed, including its codec's time. ``ratio`` is raw bytes over
    stored bytes. ``ready_s`` is when its last forward consumer is done, in a forward pass without I/O. ``kind`` is the
    type of the layer whose input it is ("conv", "pool", ...), used only by the vDNN policies.
    """

    nbytes: int
    transfer_s: float
    ratio: float = 1.0
    ready_s: float = 0.0
    kind: str = ""

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"ActivationProfile.nbytes is {self.nbytes}: expected 0 or more")
        for name, value in (("transfer_s", self.transfer_s), ("ready_s", self.ready_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"ActivationProfile.{name} is {value}: expected a finite number of 0 or more")
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"ActivationProfile.ratio is {self.ratio}: expected a finite number above 0")

    @property
    def stored_s(self) -> float:
        """Seconds to move it out as stored."""
        return self.transfer_s / self.ratio


def transfer_seconds(activations: Sequence[ActivationProfile], selected: Iterable[int]) -> float:
    """Return the channel's work: FlashNeuron's sum of transfer times (section 3.3, phase 2), without waits."""
    return math.fsum(activations[i].stored_s for i in selected)


def finish_seconds(activations: Sequence[ActivationProfile], selected: Iterable[int]) -> float:
    """Return when a first-in-first-out channel is done that starts no activation before it is ready."""
    finish = 0.0
    for i in selected:
        activation = activations[i]
        finish = max(finish, activation.ready_s) + activation.stored_s
    return finish


def hides(
    activations: Sequence[ActivationProfile], selected: Sequence[int], forward_s: float, strict_paper: bool = False
) -> bool:
    """Return whether the selected activations are out by the end of the forward pass.

    The paper only requires that the sum of transfer times be at most the forward time. That is necessary, not
    sufficient: an activation cannot leave before it is ready. So the default uses the finish time.
    """
    test = transfer_seconds if strict_paper else finish_seconds
    return test(activations, selected) <= forward_s
