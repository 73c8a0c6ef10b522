"""Blobs, and whether moving some of them out hides behind the forward pass. Pure: numbers in, numbers out.

Units: bytes and seconds, always. Blobs stand in forward order, and one channel moves them out in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ActivationProfile:
    """One activation as the profile saw it.

    ``transfer_s`` is the time to move it out uncompressed, its codec's own time included; ``ratio`` is raw bytes over
    stored bytes; ``ready_s`` is when, in a forward pass without I/O, its last forward consumer is done; ``kind`` is
    the type of the layer whose input it is ("conv", "pool", ...), which only the vDNN policies read.
    """

    nbytes: int
    transfer_s: float
    ratio: float = 1.0
    ready_s: float = 0.0
    kind: str = ""

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"ActivationProfile.nbytes is {self.nbytes}; a size is 0 or more")
        for name, value in (("transfer_s", self.transfer_s), ("ready_s", self.ready_s)):
            if not 0 <= value < math.inf:
                raise ValueError(f"ActivationProfile.{name} is {value}; a time is finite and 0 or more")
        if not 0 < self.ratio < math.inf:
            raise ValueError(
                f"ActivationProfile.ratio is {self.ratio}; raw bytes over stored bytes is finite and above 0"
            )

    @property
    def stored_s(self) -> float:
        """Seconds to move it out as it is stored."""
        return self.transfer_s / self.ratio


def transfer_seconds(blobs: Sequence[ActivationProfile], selected: Iterable[int]) -> float:
    """The channel's work: the sum of FlashNeuron (section 3.3, phase 2), in which waiting has no part."""
    return math.fsum(blobs[i].stored_s for i in selected)


def finish_seconds(blobs: Sequence[ActivationProfile], selected: Iterable[int]) -> float:
    """When the channel is done if it is first in, first out and starts no blob before that is ready."""
    finish = 0.0
    for i in selected:
        blob = blobs[i]
        finish = max(finish, blob.ready_s) + blob.stored_s
    return finish


def hides(
    blobs: Sequence[ActivationProfile], selected: Sequence[int], forward_s: float, strict_paper: bool = False
) -> bool:
    """Whether the selected blobs are out by the end of the forward pass.

    The paper asks that the sum of transfer times be no more than the forward time. That is necessary, not sufficient:
    a blob cannot leave before it is ready, so the default asks the timeline.
    """
    test = transfer_seconds if strict_paper else finish_seconds
    return test(blobs, selected) <= forward_s
