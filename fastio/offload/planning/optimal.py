"""The least transfer time that frees enough bytes: a knapsack over (seconds, bytes), solved from the last blob back."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio.offload.planning.flashneuron import flashneuron
from fastio.offload.planning.overlap import ActivationProfile, hides, transfer_seconds

STATES = 3_000_000  # states kept in one search, over all blobs
FEW = 64  # fewer states are not worth pruning
ROUNDING = 1e-11  # relative; seconds summed from the back round differently from seconds summed in forward order

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def optimal(
    blobs: Sequence[ActivationProfile], need_bytes: int, forward_s: float, strict_paper: bool = False
) -> tuple[int, ...]:
    """The indices of the blobs to move out, ascending. All blobs together must have ``need_bytes``.

    Of the selections with enough bytes that hide (see :func:`fastio.offload.planning.overlap.hides`), the one with the
    least transfer time; where none hides, the one with the least transfer time of all.

    Guarantee: exact, up to rounding, for 17 blobs or fewer, and for n blobs as long as no step has more than
    ``STATES / n`` undominated states (few where sizes repeat, as in deep networks). Past that the states are
    thinned evenly and the answer may lie above the optimum. It is never worse than flashneuron's: it hides where that
    does, and takes no more time unless it hides where that does not. The effort is bounded by ``STATES``, not by a
    clock: equal arguments give equal answers.
    """
    if need_bytes <= 0:
        return ()
    rival = flashneuron(blobs, need_bytes, forward_s, strict_paper)
    items = _Items.of(blobs, need_bytes)
    start = min(rival, items.cheapest_first(), key=lambda selected: transfer_seconds(blobs, selected))
    least = _search(items, start, transfer_seconds(blobs, start), math.inf) or start
    if strict_paper or hides(blobs, least, forward_s):
        return least
    hidden = rival if hides(blobs, rival, forward_s) else None
    if hidden is None and _most_nbytes(items, forward_s) < need_bytes * (1 - 100 * ROUNDING):
        return least
    # What hides takes no more than the forward time, so nothing dearer need be looked at.
    ceiling = forward_s * (1 + 4 * ROUNDING) if hidden is None else transfer_seconds(blobs, rival)
    for margin in (ROUNDING, -ROUNDING):
        found = _search(items, hidden, ceiling, forward_s * (1 + margin))
        if found is None or hides(blobs, found, forward_s):
            return found or least
    return hidden or least


@dataclass(frozen=True)
class _Items:
    """The knapsack: what each blob costs and frees, and the price of a byte that bounds every selection from below.

    With any ``price``, ``price * need + sum(min(0, seconds - price * nbytes))`` is no more than the transfer time of
    any selection with enough bytes (Lagrange); the price of the last blob that cheapest-first takes is the best one.
    """

    seconds: Floats
    nbytes: Integers
    ready: Floats
    need: int
    order: Integers
    price: float

    @classmethod
    def of(cls, blobs: Sequence[ActivationProfile], need: int) -> _Items:
        """The knapsack of these blobs."""
        seconds = np.array([blob.stored_s for blob in blobs], dtype=np.float64)
        nbytes = np.array([blob.nbytes for blob in blobs], dtype=np.int64)
        ready = np.array([blob.ready_s for blob in blobs], dtype=np.float64)
        useful = np.flatnonzero(nbytes)
        order = useful[np.argsort(seconds[useful] / nbytes[useful], kind="stable")]
        last = order[np.searchsorted(np.cumsum(nbytes[order]), need)]
        return cls(seconds, nbytes, ready, need, order, float(seconds[last] / nbytes[last]))

    def cheapest_first(self) -> tuple[int, ...]:
        """Least seconds a byte first until it is enough, less what turns out not to be needed, dearest first."""
        sums = np.cumsum(self.nbytes[self.order])
        taken = self.order[: np.searchsorted(sums, self.need) + 1]
        surplus = int(self.nbytes[taken].sum()) - self.need
        selected = set(taken.tolist())
        for i in taken[np.argsort(-self.seconds[taken], kind="stable")].tolist():
            if self.nbytes[i] <= surplus:
                surplus -= int(self.nbytes[i])
                selected.remove(i)
        return tuple(sorted(selected))


def _search(items: _Items, start: tuple[int, ...] | None, ceiling: float, forward_s: float) -> tuple[int, ...] | None:
    """A selection that is out by ``forward_s`` in less than ``ceiling``, the transfer time of ``start``; or ``start``.

    A state is (seconds, bytes) of what was chosen among the blobs from i on. First in, first out by the forward time
    means that, for every chosen blob, its ready time and the seconds from it on are no more than that time: so going
    back from the last blob makes it a limit on the state's seconds. A state with no fewer seconds and no more bytes
    than another is dominated.
    """
    gain = np.minimum(0.0, items.seconds - items.price * items.nbytes)
    floor = items.price * items.need + float(gain.sum())
    better = aim = ceiling * (1 - ROUNDING)  # a better selection takes less than this
    if floor >= aim:
        return start
    reduced = items.seconds - items.price * items.nbytes
    never = (items.nbytes == 0) | ((reduced > 0) & (floor + reduced >= aim))
    always = (reduced < 0) & (floor - reduced >= aim)
    behind_gain = (np.cumsum(gain) - gain).tolist()
    open_nbytes = np.where(never, 0, items.nbytes)
    behind_nbytes = (np.cumsum(open_nbytes) - open_nbytes).tolist()
    most = max(FEW, STATES // len(never))
    spread = np.arange(most)
    seconds, nbytes = np.zeros(1), np.zeros(1, dtype=np.int64)
    trail: list[tuple[int, int, Integers]] = []
    for i in np.flatnonzero(~never)[::-1].tolist():
        keeping = 0 if always[i] else len(nbytes)  # how many states may leave blob i alone
        seconds, nbytes, origin = _step(seconds, nbytes, keeping, items, i, forward_s)
        last = int(nbytes.searchsorted(items.need)) + 1  # the cheapest complete state: dearer ones are of no use
        first = int(nbytes.searchsorted(items.need - behind_nbytes[i]))  # those before it cannot become complete
        if last <= len(nbytes):
            aim = min(aim, float(seconds[last - 1]))
        seconds, nbytes, origin = seconds[first:last], nbytes[first:last], origin[first:last]
        if len(nbytes) > FEW:
            keep = seconds - items.price * nbytes < aim - items.price * items.need - behind_gain[i]
            keep[-1] |= nbytes[-1] >= items.need
            kept = keep.nonzero()[0]
            if len(kept) > most:
                kept = kept[spread * (len(kept) - 1) // (most - 1)]
            seconds, nbytes, origin = seconds[kept], nbytes[kept], origin[kept]
        if len(nbytes) == 0:
            return start
        trail.append((i, keeping, origin.astype(np.int32)))
    if nbytes[-1] < items.need or seconds[-1] >= better:
        return start
    return _retrace(trail, len(nbytes) - 1)


def _step(
    seconds: Floats, nbytes: Integers, keeping: int, items: _Items, i: int, forward_s: float
) -> tuple[Floats, Integers, Integers]:
    """The undominated states with blob ``i`` decided, by rising seconds.

    And where each came from: state ``k`` below ``keeping`` without the blob, or ``k - keeping`` with it.
    """
    taking = int(seconds.searchsorted(forward_s - items.ready[i] - items.seconds[i], side="right"))
    every_seconds = np.concatenate((seconds[:keeping], seconds[:taking] + items.seconds[i]))
    every_nbytes = np.concatenate((nbytes[:keeping], nbytes[:taking] + items.nbytes[i]))
    order = every_seconds.argsort(kind="stable")
    ordered = every_nbytes[order]
    order = order[np.concatenate((ordered[:1] >= 0, ordered[1:] > np.maximum.accumulate(ordered)[:-1]))]
    return every_seconds[order], every_nbytes[order], order


def _retrace(trail: list[tuple[int, int, Integers]], state: int) -> tuple[int, ...]:
    selected: list[int] = []
    for i, keeping, origin in reversed(trail):
        state = int(origin[state])
        if state >= keeping:
            state -= keeping
            selected.append(i)
    return tuple(sorted(selected))


def _most_nbytes(items: _Items, forward_s: float) -> float:
    """No selection that is out by ``forward_s`` has more bytes than this.

    Blobs in part allowed, it is what hides at most: from the last blob back, take everything, and when the seconds are
    more than the blob's limit give up the bytes that take longest. The limits are let rise where ready times do not.
    """
    limit = seconds = nbytes = 0.0
    slowest: list[tuple[float, float]] = []  # seconds per byte, negated, and seconds
    for i in reversed(range(len(items.nbytes))):
        size, took = float(items.nbytes[i]), float(items.seconds[i])
        limit = max(limit, forward_s - float(items.ready[i]))
        nbytes += size
        pace = took / size if size else 0.0
        if pace == 0:  # no time, or so little that a byte's share is too small for a number
            continue
        seconds += took
        heapq.heappush(slowest, (-pace, took))
        while slowest and seconds > limit:
            pace, took = heapq.heappop(slowest)
            give = min(took, seconds - limit)
            seconds -= give
            nbytes += give / pace
            if give < took:
                heapq.heappush(slowest, (pace, took - give))
                break
    return nbytes
