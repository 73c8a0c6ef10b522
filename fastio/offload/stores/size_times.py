"""The times of tools for feature maps of each size by itself, as Fastensor's dictionaries have them (section 4). Pure.

A training writes and reads feature maps of a few sizes thousands of times. So each size is judged by its own times, by
the median of the latest ones, and not by a curve through the times of all sizes, as the general dictionaries do. Sizes
in one bucket (a quarter of an octave) count as one: a codec makes many.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from statistics import median

from fastio.dicts.sizes import bucket_of

_LATEST = 17  # times that count, of each tool and direction
_FAR = 1.5  # a tool this many times slower than the best of the nearest size is not tried at another
_AGAIN, _POWER, _MOST = 32, 4, 512  # a tool as fast as the best is tried again after 32 calls, a slower one later


class SizeTimes:
    """Orders tools by their seconds to write (``"w"``), to read (``"r"``) or both (``"w+r"``), by size in bytes."""

    def __init__(self, mode: str) -> None:
        self._mode = mode
        # By bucket, tool and direction.
        self._times: defaultdict[int, dict[str, dict[str, deque[float]]]] = defaultdict(dict)
        self._calls: Counter[int] = Counter()  # by bucket
        self._used: dict[tuple[int, str], int] = {}  # the number of the latest of them, by tool
        self._failed: dict[str, tuple[int, int]] = {}  # the least bucket, and the orders to come

    def order(self, nbytes: int, tools: Sequence[str], expected: Callable[[], Mapping[str, float]]) -> tuple[str, ...]:
        """Return the tools, the one to use first; none if nothing is known yet.

        ``expected`` returns the seconds by another judge. It is asked about tools that no size knows.
        """
        if not self._times:
            return ()
        bucket = bucket_of(nbytes)
        able = [tool for tool in tools if not self._is_failed(bucket, tool)] or list(tools)
        seconds = self._seconds(bucket)
        known = {tool: seconds[tool] for tool in able if tool in seconds}
        ranked = sorted(known, key=known.__getitem__)
        unknown = (tool for tool in able if tool not in known)
        chosen = next((tool for tool in unknown if self._may_be_best(bucket, tool, expected)), "")
        if not chosen and not ranked:
            return ()
        if not chosen:
            self._calls[bucket] += 1
            calls, least = self._calls[bucket], known[ranked[0]]
            # By the latest time, if that is shorter: a tool that was slow for a while is soon known again.
            latest = self._seconds(bucket, lambda last: last[-1])
            waits = ((tool, _wait(min(known[tool], latest[tool]) / least)) for tool in ranked[1:])
            due = (tool for tool, wait in waits if calls - self._used.get((bucket, tool), 0) >= wait)
            chosen = next(due, ranked[0])
            self._used[bucket, chosen] = calls
        return tuple(dict.fromkeys((chosen, *ranked, *tools)))

    def observe(self, direction: str, nbytes: int, tool: str, seconds: float) -> None:
        """Learn the seconds of a write (``"w"``) or a read (``"r"``)."""
        times = self._times[bucket_of(nbytes)].setdefault(tool, {})
        times.setdefault(direction, deque(maxlen=_LATEST)).append(seconds)

    def fail(self, nbytes: int, tool: str) -> None:
        """Learn that a tool cannot do it: for a while it is used at this size and larger ones only if none else can."""
        bucket = bucket_of(nbytes)
        self._failed[tool] = min(bucket, self._failed.get(tool, (bucket, 0))[0]), _MOST

    def _is_failed(self, bucket: int, tool: str) -> bool:
        least, orders = self._failed.get(tool, (0, 0))
        if not orders or bucket < least:
            return False
        self._failed[tool] = least, orders - 1
        return True

    def _seconds(self, bucket: int, of: Callable[[Sequence[float]], float] = median) -> dict[str, float]:
        """The seconds of the mode's directions, by known tool. One without times takes as long as the other."""
        found = {}
        for tool, times in self._times.get(bucket, {}).items():
            by_direction = {direction: of(last) for direction, last in times.items()}
            other = next(iter(by_direction.values()))
            found[tool] = sum(by_direction.get(direction, other) for direction in "wr" if direction in self._mode)
        return found

    def _may_be_best(self, bucket: int, tool: str, expected: Callable[[], Mapping[str, float]]) -> bool:
        """Whether an unknown tool may be the best at a bucket: by the nearest one at which it is known, if there is."""
        buckets = [other for other, known in self._times.items() if tool in known]
        nearest = min(buckets, key=lambda other: abs(other - bucket), default=None)
        seconds = expected() if nearest is None else self._seconds(nearest)
        return tool not in seconds or seconds[tool] <= _FAR * min(seconds.values())


def _wait(ratio: float) -> float:
    """The calls between two of a tool that takes ``ratio`` times as long as the best."""
    return min(_AGAIN * ratio**_POWER, _MOST)
