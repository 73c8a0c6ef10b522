"""Which blobs need not go as far as the disk, or not at all: those that come back soonest. Pure. Bytes and seconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PAGE = 4096  # host memory is given out in whole pages


def soonest(nbytes: Sequence[float], order: Iterable[int], room: int) -> frozenset[int]:
    """The blobs to keep within ``room`` bytes of host memory, given the ``order`` in which backward asks for them.

    What comes back last would wait longest there, and its way from a disk hides best behind what comes before it. One
    that does not fit is passed over, not waited for: smaller ones behind it may.
    """
    kept: set[int] = set()
    for blob in dict.fromkeys(order):
        pages = max(1, -(-int(nbytes[blob]) // _PAGE)) * _PAGE
        if pages <= room:
            kept.add(blob)
            room -= pages
    return frozenset(kept)


def not_worth_moving(
    nbytes: Sequence[int], away_s: Sequence[float], transfer_s: Sequence[float], order: Iterable[int], room: int
) -> frozenset[int]:
    """The blobs that backward wants before they could be out and back, within ``room`` bytes of memory.

    ``away_s`` is the time between making and wanting each, ``transfer_s`` what its write and its read take; twice
    that is asked for, because a write may queue behind others, and a read begins no sooner than backward. ``order`` is
    that in which backward asks: the pass turns there.
    """
    kept: set[int] = set()
    for blob in dict.fromkeys(order):
        if away_s[blob] < 2 * transfer_s[blob]:
            room -= nbytes[blob]
            if room < 0:
                break
            kept.add(blob)
    return frozenset(kept)
