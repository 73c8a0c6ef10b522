"""The times of tools for feature maps of each size by itself, as Fastensor's dictionaries have them (section 4). Pure.

A training writes and reads feature maps of a few sizes thousands of times. So each size is judged by its own times, by
the median of the latest ones, and not by a curve through the times of all sizes, as the general dictionaries do. Sizes
in one bucket (a quarter of an octave) count as one: a codec makes many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median

from fastio.dicts.sizes import bucket_of

_LATEST = 17  # times that count, of each tool and direction
_FAR = 1.5  # a tool this many times slower than the best of the nearest size is not tried at another
_AGAIN, _POWER, _MOST = 32, 4, 512  # a tool as fast as the best is tried again after 32 calls, a slower one later


class SizeTimes:
    """Orders tools by their seconds to write (``"w"``), to read (``"r"``) or both (``"w+r"``), by size in bytes.

    Sizes are compared within a key: the device, or whatever else the times depend on.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._times: dict[tuple[Hashable, int, str], dict[str, deque[float]]] = {}  # by key, bucket, tool; then w and r
        self._calls: dict[tuple[Hashable, int], int] = {}  # by key and bucket
        self._used: dict[tuple[Hashable, int, str], int] = {}  # the number of the latest of them, by tool
        self._failed: dict[tuple[Hashable, str], tuple[int, int]] = {}  # the least bucket, and the orders to come

    def order(
        self, key: Hashable, nbytes: int, tools: Sequence[str], expected: Callable[[], Mapping[str, float]]
    ) -> tuple[str, ...]:
        """Return the tools, the one to use first; none if nothing is known of this key yet.

        ``expected`` returns the seconds by another judge. It is asked about tools that no size knows.
        """
        if not any(its_key == key for its_key, _, _ in self._times):
            return ()
        bucket = bucket_of(nbytes)
        able = [tool for tool in tools if not self._is_failed(key, bucket, tool)] or list(tools)
        known = {tool: seconds for tool in able if (seconds := self._seconds(key, bucket, tool)) is not None}
        ranked = sorted(known, key=known.__getitem__)
        unknown = (tool for tool in able if tool not in known)
        chosen = next((tool for tool in unknown if self._may_be_best(key, bucket, tool, expected)), "")
        if not chosen and not ranked:
            return ()
        if not chosen:
            calls = self._calls[key, bucket] = self._calls.get((key, bucket), 0) + 1
            # By the latest time, if that is shorter: a tool that was slow for a while is soon known again.
            least = known[ranked[0]]
            waits = ((tool, _wait(min(known[tool], self._latest(key, bucket, tool)) / least)) for tool in ranked[1:])
            due = (tool for tool, wait in waits if calls - self._used.get((key, bucket, tool), 0) >= wait)
            chosen = next(due, ranked[0])
            self._used[key, bucket, chosen] = calls
        return tuple(dict.fromkeys((chosen, *ranked, *tools)))

    def observe(self, direction: str, key: Hashable, nbytes: int, tool: str, seconds: float) -> None:
        """Learn the seconds of a write (``"w"``) or a read (``"r"``)."""
        times = self._times.setdefault((key, bucket_of(nbytes), tool), {})
        times.setdefault(direction, deque(maxlen=_LATEST)).append(seconds)

    def fail(self, key: Hashable, nbytes: int, tool: str) -> None:
        """Learn that a tool cannot do it: for a while it is used at this size and larger ones only if none else can."""
        bucket, _ = self._failed.get((key, tool), (bucket_of(nbytes), 0))
        self._failed[key, tool] = min(bucket, bucket_of(nbytes)), _MOST

    def _is_failed(self, key: Hashable, bucket: int, tool: str) -> bool:
        least, orders = self._failed.get((key, tool), (0, 0))
        if not orders or bucket < least:
            return False
        self._failed[key, tool] = least, orders - 1
        return True

    def _seconds(self, key: Hashable, bucket: int, tool: str) -> float | None:
        """The expected seconds; None if they are unknown."""
        times = self._times.get((key, bucket, tool))
        return None if times is None else self._sum({direction: median(last) for direction, last in times.items()})

    def _latest(self, key: Hashable, bucket: int, tool: str) -> float:
        return self._sum({direction: last[-1] for direction, last in self._times[key, bucket, tool].items()})

    def _sum(self, seconds: Mapping[str, float]) -> float:
        """The seconds of the mode's directions. One without times takes as long as the other."""
        other = next(iter(seconds.values()))
        return sum(seconds.get(direction, other) for direction in "wr" if direction in self._mode)

    def _may_be_best(self, key: Hashable, bucket: int, tool: str, expected: Callable[[], Mapping[str, float]]) -> bool:
        """Whether an unknown tool may be the best at a bucket: by the nearest one at which it is known, if there is."""
        buckets = [its_bucket for its_key, its_bucket, its_tool in self._times if (its_key, its_tool) == (key, tool)]
        if buckets:
            nearest = min(buckets, key=lambda its_bucket: abs(its_bucket - bucket))
            others = {name for its_key, its_bucket, name in self._times if (its_key, its_bucket) == (key, nearest)}
            seconds = {name: self._seconds(key, nearest, name) or 0.0 for name in others}
        else:
            seconds = dict(expected())
        return seconds.get(tool, 0.0) <= _FAR * min(seconds.values(), default=0.0) or tool not in seconds


def _wait(ratio: float) -> float:
    """The calls between two of a tool that takes ``ratio`` times as long as the best."""
    return min(_AGAIN * ratio**_POWER, _MOST)
