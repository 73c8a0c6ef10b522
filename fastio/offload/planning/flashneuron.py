"""FlashNeuron's offloading scheduler (section 3.3): a prefix first, then swaps for what compresses better."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import compress

from fastio.offload.planning.overlap import ActivationProfile, hides

ROUNDING = 1e-9  # relative; sums in a tree round differently from sums in order


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
    chosen = [i < length for i in range(len(activations))]
    channel = _Channel(activations, chosen)
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
        channel.drop(victim)
        for i in reserve[first:last]:
            chosen[i] = True
            channel.add(i)
            heapq.heappush(victims, _rank(activations, i))
        first = last
        if channel.test(strict_paper) <= forward_s * (1 + ROUNDING):
            selected = tuple(compress(range(len(activations)), chosen))
            if hides(activations, selected, forward_s, strict_paper):
                return selected
    return tuple(compress(range(len(activations)), chosen))


def _shortest_prefix(activations: Sequence[ActivationProfile], need_bytes: int) -> int:
    length, nbytes = 0, 0
    while nbytes < need_bytes:
        nbytes += activations[length].nbytes
        length += 1
    return length


def _rank(activations: Sequence[ActivationProfile], i: int) -> tuple[float, int, int]:
    """Return the key for replacement: least compressible first (ratios up to 1 are equal), of equals the last."""
    return max(1.0, activations[i].ratio), -i, i


class _Channel:
    """The sum and the first-in-first-out finish of the transfers, updated in O(log n) per change.

    A tree over forward order. Each node holds the sum of seconds of its activations, and the finish they would have
    alone. After a finish f, a range with sum s and finish g ends at max(f + s, g).
    """

    def __init__(self, activations: Sequence[ActivationProfile], chosen: Sequence[bool]) -> None:
        self._activations = activations
        self._leaves = 1 << max(0, len(activations) - 1).bit_length()
        self._sum = [0.0] * (2 * self._leaves)
        self._finish = [-math.inf] * (2 * self._leaves)
        for i in compress(range(len(activations)), chosen):
            self._sum[self._leaves + i] = activations[i].stored_s
            self._finish[self._leaves + i] = activations[i].ready_s + activations[i].stored_s
        for node in range(self._leaves - 1, 0, -1):
            self._join(node)

    def add(self, i: int) -> None:
        """Select activation ``i``."""
        self._put(i, self._activations[i].stored_s, self._activations[i].ready_s + self._activations[i].stored_s)

    def drop(self, i: int) -> None:
        """Deselect activation ``i``."""
        self._put(i, 0.0, -math.inf)

    def test(self, strict_paper: bool) -> float:
        """Return the value that must not exceed the forward time."""
        return self._sum[1] if strict_paper else self._finish[1]

    def _put(self, i: int, seconds: float, finish: float) -> None:
        node = self._leaves + i
        self._sum[node], self._finish[node] = seconds, finish
        while node := node >> 1:
            self._join(node)

    def _join(self, node: int) -> None:
        left, right = 2 * node, 2 * node + 1
        self._sum[node] = self._sum[left] + self._sum[right]
        self._finish[node] = max(self._finish[left] + self._sum[right], self._finish[right])
