"""Which activations stay in host memory or on the device: those that are needed soonest. Pure. Bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PAGE = 4096  # host memory is allocated in whole pages


def soonest(nbytes: Sequence[float], order: Iterable[int], room: int) -> frozenset[int]:
    """Return the activations to keep within ``room`` bytes of host memory, given backward's ``order``.

    An activation that is needed late would stay there longest, and its read from disk hides best behind the earlier
    ones. One that does not fit is skipped; smaller ones after it may fit.
    """
    kept: set[int] = set()
    for activation in dict.fromkeys(order):
        pages = max(1, -(-int(nbytes[activation]) // _PAGE)) * _PAGE
        if pages <= room:
            kept.add(activation)
            room -= pages
    return frozenset(kept)


def not_worth_moving(
    nbytes: Sequence[int], away_s: Sequence[float], transfer_s: Sequence[float], order: Iterable[int], room: int
) -> frozenset[int]:
    """Return the activations that backward needs before they could be out and back, within ``room`` bytes.

    ``away_s`` is the time between making and needing each; ``transfer_s`` is the time of its write and its read. An
    activation stays if it is away less than twice that, because a write may queue behind others, and reads begin only
    with backward. ``order`` is backward's order: the first ones are those at the turn of the pass.
    """
    kept: set[int] = set()
    for activation in dict.fromkeys(order):
        if away_s[activation] < 2 * transfer_s[activation]:
            room -= nbytes[activation]
            if room < 0:
                break
            kept.add(activation)
    return frozenset(kept)
