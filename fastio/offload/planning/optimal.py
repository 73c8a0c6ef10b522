"""The least transfer time that frees enough bytes: a knapsack over (seconds, bytes), solved from the back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastio.offload.planning.flashneuron import flashneuron
from fastio.offload.planning.overlap import ActivationProfile, hides, transfer_seconds

STATES = 3_000_000  # kept in one search, over all activations
FEW = 64  # fewer states are not worth pruning
ROUNDING = 1e-11  # relative; sums from the back and sums in forward order round differently

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


def optimal(
    activations: Sequence[ActivationProfile], need_bytes: int, forward_s: float, strict_paper: bool = False
) -> tuple[int, ...]:
    """Return the indices of the activations to move out, ascending. Their total must be ``need_bytes`` or more.

    Of the selections with enough bytes that hide (see :func:`fastio.offload.planning.overlap.hides`), returns the one
    with the least transfer time; if none hides, the one with the least transfer time of all.

    Guarantee: exact, up to rounding, for 17 activations or fewer, and for n activations while no step has more than
    ``STATES / n`` undominated states (few where sizes repeat, as in deep networks). Beyond that, states are thinned
    evenly and the result may be above the optimum. It is never worse than flashneuron's: it hides if that hides, and
    takes no more time unless it hides and that does not. ``STATES``, not a clock, bounds the effort: equal arguments
    give equal results.
    """
    if need_bytes <= 0:
        return ()
    rival = flashneuron(activations, need_bytes, forward_s, strict_paper)
    items = _Items.of(activations, need_bytes)
    start = min(rival, items.cheapest_first(), key=lambda selected: transfer_seconds(activations, selected))
    least = _search(items, start, transfer_seconds(activations, start), math.inf) or start
    if strict_paper or hides(activations, least, forward_s):
        return least
    hidden = rival if hides(activations, rival, forward_s) else None
    # What hides takes at most the forward time, so costlier selections need no search.
    ceiling = forward_s * (1 + 4 * ROUNDING) if hidden is None else transfer_seconds(activations, rival)
    for margin in (ROUNDING, -ROUNDING):
        found = _search(items, hidden, ceiling, forward_s * (1 + margin))
        if found is None or hides(activations, found, forward_s):
            return found or least
    return hidden or least


@dataclass(frozen=True)
class _Items:
    """The knapsack: seconds and bytes of each activation, and the price per byte that gives the lower bound.

    For any ``price``, ``price * need + sum(min(0, seconds - price * nbytes))`` is at most the transfer time of any
    selection with enough bytes (Lagrange). The price of the last activation that cheapest-first takes gives the best
    bound.
    """

    seconds: Floats
    nbytes: Integers
    ready: Floats
    need: int
    order: Integers
    price: float

    @classmethod
    def of(cls, activations: Sequence[ActivationProfile], need: int) -> _Items:
        seconds = np.array([activation.stored_s for activation in activations], dtype=np.float64)
        nbytes = np.array([activation.nbytes for activation in activations], dtype=np.int64)
        ready = np.array([activation.ready_s for activation in activations], dtype=np.float64)
        useful = np.flatnonzero(nbytes)
        order = useful[np.argsort(seconds[useful] / nbytes[useful], kind="stable")]
        last = order[np.searchsorted(np.cumsum(nbytes[order]), need)]
        return cls(seconds, nbytes, ready, need, order, float(seconds[last] / nbytes[last]))

    def cheapest_first(self) -> tuple[int, ...]:
        """Select by seconds per byte until it is enough, then drop what is surplus, most seconds first."""
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
    """Return a selection that is out by ``forward_s`` in less than ``ceiling`` seconds, or else ``start``.

    ``ceiling`` is the transfer time of ``start``. A state is the (seconds, bytes) selected among the activations from i
    on. In a first-in-first-out channel, everything is out by the forward time if, for every selected activation, its
    ready time plus the seconds from it on are at most that time. Going back from the last activation, this limits the
    state's seconds. A state is dominated by another with no more seconds and no fewer bytes.
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
        keeping = 0 if always[i] else len(nbytes)  # states that may leave activation i out
        seconds, nbytes, origin = _step(seconds, nbytes, keeping, items, i, forward_s)
        last = int(nbytes.searchsorted(items.need)) + 1  # one past the cheapest complete state
        first = int(nbytes.searchsorted(items.need - behind_nbytes[i]))  # states before it cannot become complete
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
    """Return the undominated states with activation ``i`` decided, by rising seconds, and the origin of each.

    The origin is state ``k`` (below ``keeping``) without the activation, or ``k - keeping`` with it.
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
