"""Which activations stay in host memory or on the device: those that are needed soonest. Pure. Bytes and seconds.

FlashNeuron (section 4.3) leaves the choice between host memory and the SSD to the workload.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_PAGE = 4096  # host memory is allocated in whole pages

# Moving a small tensor out and back costs the host 0.1 ms (host memory) to 0.5 ms (disk), in which an accelerator gets
# no work: measured without device calls; with those of a simulated device, on a busy machine, 0.6 to 0.8 ms. A drive of
# 4 GB/s writes 1 MiB in 0.26 ms: from there on, the transfer takes longer than its handling.
_DEAR_BELOW = 1 << 20
_SMALL_SHARE = 32  # tensors that stay because they are small have at most this part of the bytes


def whole_pages(nbytes: float) -> int:
    """Return the bytes of host memory that an activation takes."""
    return max(1, -(-int(nbytes) // _PAGE)) * _PAGE


def soonest(nbytes: Sequence[float], order: Iterable[int], room: int) -> frozenset[int]:
    """Return the activations to keep within ``room`` bytes of host memory, given backward's ``order``.

    An activation that is needed late would stay there longest, and its read from disk hides best behind the earlier
    ones. One that does not fit is skipped; smaller ones after it may fit.
    """
    kept: set[int] = set()
    for activation in dict.fromkeys(order):
        pages = whole_pages(nbytes[activation])
        if pages <= room:
            kept.add(activation)
            room -= pages
    return frozenset(kept)


def host_room(nbytes: float, host_budget: int, host_pace: float, disk_pace: float) -> int:
    """Return how many of ``nbytes`` go to host memory, which has room for ``host_budget``; the disk gets the others.

    The paces are seconds per byte, as measured beside whatever else uses the memory and the disk. Host memory gets all
    that it has room for, unless it is the slower one: then the part with which both are done at once.
    """
    if host_pace <= disk_pace:
        return host_budget
    return int(min(host_budget, nbytes * disk_pace / (host_pace + disk_pace)))


def least_worth_moving(nbytes: Iterable[int], budget: int | None) -> int:
    """Return the size below which the activations of a pass on an accelerator stay there.

    It is at most 1 MiB. All smaller ones together have at most 1/32 of all bytes, and of the ``budget``.
    """
    sizes = sorted(nbytes)
    room = (sum(sizes) if budget is None else min(budget, sum(sizes))) // _SMALL_SHARE
    small = 0
    for size in sizes:
        small += size
        if size >= _DEAR_BELOW or small > room:
            return min(size, _DEAR_BELOW)
    return 0


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
