"""FlashNeuron's offloading scheduler (section 3.3): a prefix first, then swaps for what compresses better."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from fastio.offload.planning.overlap import ActivationProfile, hides

ROUNDING = 1e-9  # relative; sums from the back round differently from sums in order


def flashneuron(
    activations: Sequence[ActivationProfile], need_bytes: int, forward_s: float, strict_paper: bool = False
) -> tuple[int, ...]:
    """Return the indices of the activations to move out, ascending. Their total must be ``need_bytes`` or more.

    Phase 1 is the shortest prefix with enough bytes. While the transfers do not hide, phase 2 replaces the last
    incompressible activation of the selection (if none is left, the last of the least compressible) by activations
    outside it that compress better, best first, until they have its bytes. If these do not suffice, the selection
    stands: it fits in memory and delays the forward pass. A replaced activation never returns, so there are at most n
    swaps.
    """
    length = _shortest_prefix(activations, need_bytes)
    prefix = tuple(range(length))
    if hides(activations, prefix, forward_s, strict_paper):
        return prefix
    stored_s = np.array([activation.stored_s for activation in activations])
    ready_s = np.array([activation.ready_s for activation in activations])
    chosen = np.arange(len(activations)) < length
    # Sorting is stable: of equal ratios, the first in forward order comes first.
    reserve = sorted(range(length, len(activations)), key=lambda i: -activations[i].ratio)
    first = 0  # earlier entries of the reserve are selected
    victims = [_rank(activations, i) for i in prefix]
    heapq.heapify(victims)
    while victims:
        ratio, _, victim = heapq.heappop(victims)
        last, nbytes = first, 0
        while nbytes < activations[victim].nbytes and last < len(reserve) and activations[reserve[last]].ratio > ratio:
            nbytes += activations[reserve[last]].nbytes
            last += 1
        if nbytes < activations[victim].nbytes:
            break
        chosen[victim] = False
        for i in reserve[first:last]:
            chosen[i] = True
            heapq.heappush(victims, _rank(activations, i))
        first = last
        # A first-in-first-out channel ends at the latest of: one is ready, and all from it on take their seconds.
        behind_s = np.where(chosen, stored_s, 0.0)[::-1].cumsum()[::-1]
        out_s = behind_s[0] if strict_paper else np.max(ready_s + behind_s, where=chosen, initial=0.0)
        if out_s <= forward_s * (1 + ROUNDING):
            selected = tuple(np.flatnonzero(chosen).tolist())
            if hides(activations, selected, forward_s, strict_paper):
                return selected
    return tuple(np.flatnonzero(chosen).tolist())


def _shortest_prefix(activations: Sequence[ActivationProfile], need_bytes: int) -> int:
    length, nbytes = 0, 0
    while nbytes < need_bytes:
        nbytes += activations[length].nbytes
        length += 1
    return length


def _rank(activations: Sequence[ActivationProfile], i: int) -> tuple[float, int, int]:
    """Return the key for replacement: least compressible first (ratios up to 1 are equal), of equals the last."""
    return max(1.0, activations[i].ratio), -i, i
