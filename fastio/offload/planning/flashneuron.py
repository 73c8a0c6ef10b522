"""FlashNeuron's offloading scheduler (section 3.3): a prefix first, then swaps for what compresses better."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from itertools import compress

from fastio.offload.planning.overlap import ActivationProfile, hides

ROUNDING = 1e-9  # relative; sums in a tree round differently from sums in order


def flashneuron(
    blobs: Sequence[ActivationProfile], need_bytes: int, forward_s: float, strict_paper: bool = False
) -> tuple[int, ...]:
    """The indices of the blobs to move out, ascending. All blobs together must have ``need_bytes``.

    Phase 1 is the shortest prefix with enough bytes. Phase 2, while the transfers do not hide, gives up the last
    incompressible blob of the selection (when none is left, the last of the least compressible) for blobs outside that
    compress better, best first, until they have its bytes. Where these do not suffice the selection stands as it is: it
    fits in memory and delays the forward pass. A blob given up never comes back, so this ends after n swaps or fewer.
    """
    length = _shortest_prefix(blobs, need_bytes)
    prefix = tuple(range(length))
    if hides(blobs, prefix, forward_s, strict_paper):
        return prefix
    chosen = [i < length for i in range(len(blobs))]
    channel = _Channel(blobs, chosen)
    # Sorting is stable: of equal ratios, the first in forward order comes first.
    reserve = sorted(range(length, len(blobs)), key=lambda i: -blobs[i].ratio)
    first = 0  # what stands before it in the reserve has been taken
    victims = [_rank(blobs, i) for i in prefix]
    heapq.heapify(victims)
    while victims:
        ratio, _, victim = heapq.heappop(victims)
        last, nbytes = first, 0
        while nbytes < blobs[victim].nbytes and last < len(reserve) and blobs[reserve[last]].ratio > ratio:
            nbytes += blobs[reserve[last]].nbytes
            last += 1
        if nbytes < blobs[victim].nbytes:
            break
        chosen[victim] = False
        channel.drop(victim)
        for i in reserve[first:last]:
            chosen[i] = True
            channel.add(i)
            heapq.heappush(victims, _rank(blobs, i))
        first = last
        if channel.test(strict_paper) <= forward_s * (1 + ROUNDING):
            selected = tuple(compress(range(len(blobs)), chosen))
            if hides(blobs, selected, forward_s, strict_paper):
                return selected
    return tuple(compress(range(len(blobs)), chosen))


def _shortest_prefix(blobs: Sequence[ActivationProfile], need_bytes: int) -> int:
    length, nbytes = 0, 0
    while nbytes < need_bytes:
        nbytes += blobs[length].nbytes
        length += 1
    return length


def _rank(blobs: Sequence[ActivationProfile], i: int) -> tuple[float, int, int]:
    """Who is given up first: the incompressible before the least compressible, and of equals the last."""
    return max(1.0, blobs[i].ratio), -i, i


class _Channel:
    """The transfers' sum and their first-in-first-out finish, kept through changes in O(log n) each.

    A tree over forward order. A node holds its blobs' sum of seconds and the finish they would give alone; behind a
    finish f, a stretch with sum s and finish g is done at max(f + s, g).
    """

    def __init__(self, blobs: Sequence[ActivationProfile], chosen: Sequence[bool]) -> None:
        self._blobs = blobs
        self._leaves = 1 << max(0, len(blobs) - 1).bit_length()
        self._sum = [0.0] * (2 * self._leaves)
        self._finish = [-math.inf] * (2 * self._leaves)
        for i in compress(range(len(blobs)), chosen):
            self._sum[self._leaves + i] = blobs[i].stored_s
            self._finish[self._leaves + i] = blobs[i].ready_s + blobs[i].stored_s
        for node in range(self._leaves - 1, 0, -1):
            self._join(node)

    def add(self, i: int) -> None:
        """Blob ``i`` is to move."""
        self._put(i, self._blobs[i].stored_s, self._blobs[i].ready_s + self._blobs[i].stored_s)

    def drop(self, i: int) -> None:
        """Blob ``i`` stays."""
        self._put(i, 0.0, -math.inf)

    def test(self, strict_paper: bool) -> float:
        """What must be no more than the forward time."""
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
