"""The times of tools for feature maps of one size each (Fastensor, section 4: its dictionaries have exact sizes). Pure.

A training writes and reads feature maps of a few sizes thousands of times. So each size is judged by its own times, by
the median of the latest ones, and not by a curve through the times of all sizes, as the general dictionaries do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from statistics import median

_LATEST = 17  # times that count, of each tool and direction
_FAR = 1.5  # a tool this many times slower than the best of the nearest size is not tried at another
_AGAIN, _POWER, _MOST = 16, 4, 512  # a tool as fast as the best is tried again after 16 calls, a slower one later


class SizeTimes:
    """Orders tools by their seconds to write (``"w"``), to read (``"r"``) or both (``"w+r"``), by size in bytes.

    Sizes are compared within a key: the device, or whatever else the times depend on.
    """

    def __init__(self, mode: str) -> None:
        self._mode = mode
        self._times: dict[tuple[Hashable, int, str], dict[str, deque[float]]] = {}  # by key, size, tool; then w and r
        self._calls: dict[tuple[Hashable, int], int] = {}  # by key and size
        self._used: dict[tuple[Hashable, int, str], int] = {}  # the number of the latest of them, by tool
        self._failed: set[tuple[Hashable, str]] = set()

    def order(
        self, key: Hashable, nbytes: int, tools: Sequence[str], expected: Callable[[], Mapping[str, float]]
    ) -> tuple[str, ...]:
        """Return the tools, the one to use first; none if nothing is known of this key yet.

        ``expected`` returns the seconds by another judge. It is asked about tools that no size knows.
        """
        if not any(its_key == key for its_key, _, _ in self._times):
            return ()
        able = [tool for tool in tools if (key, tool) not in self._failed] or list(tools)
        known = {tool: seconds for tool in able if (seconds := self._seconds(key, nbytes, tool)) is not None}
        ranked = sorted(known, key=known.__getitem__)
        chosen = next(
            (tool for tool in able if tool not in known and self._may_be_best(key, nbytes, tool, expected)), ""
        )
        if not chosen and ranked:
            calls = self._calls[key, nbytes] = self._calls.get((key, nbytes), 0) + 1
            # By the latest time, if that is shorter: a tool that was slow for a while is soon known again.
            least = known[ranked[0]]
            waits = ((tool, _wait(min(known[tool], self._latest(key, nbytes, tool)) / least)) for tool in ranked[1:])
            due = (tool for tool, wait in waits if calls - self._used.get((key, nbytes, tool), 0) >= wait)
            chosen = next(due, ranked[0])
            self._used[key, nbytes, chosen] = calls
        return tuple(dict.fromkeys((chosen or able[0], *ranked, *tools)))

    def observe(self, direction: str, key: Hashable, nbytes: int, tool: str, seconds: float) -> None:
        """Learn the seconds of a write (``"w"``) or a read (``"r"``)."""
        times = self._times.setdefault((key, nbytes, tool), {})
        times.setdefault(direction, deque(maxlen=_LATEST)).append(seconds)

    def fail(self, key: Hashable, tool: str) -> None:
        """Learn that a tool cannot do it: it is used only if none can."""
        self._failed.add((key, tool))

    def _seconds(self, key: Hashable, nbytes: int, tool: str) -> float | None:
        """The expected seconds; None if they are unknown."""
        times = self._times.get((key, nbytes, tool))
        return None if times is None else self._sum({direction: median(last) for direction, last in times.items()})

    def _latest(self, key: Hashable, nbytes: int, tool: str) -> float:
        return self._sum({direction: last[-1] for direction, last in self._times[key, nbytes, tool].items()})

    def _sum(self, seconds: Mapping[str, float]) -> float:
        """The seconds of the mode's directions. One without times takes as long as the other."""
        other = next(iter(seconds.values()))
        return sum(seconds.get(direction, other) for direction in "wr" if direction in self._mode)

    def _may_be_best(self, key: Hashable, nbytes: int, tool: str, expected: Callable[[], Mapping[str, float]]) -> bool:
        """Whether an unknown tool may be the best at a size: by the nearest one at which it is known, if there is."""
        sizes = [size for its_key, size, its_tool in self._times if (its_key, its_tool) == (key, tool)]
        if sizes:
            size = min(sizes, key=lambda size: abs(size - nbytes))
            others = {name for its_key, its_size, name in self._times if (its_key, its_size) == (key, size)}
            seconds = {name: self._seconds(key, size, name) or 0.0 for name in others}
        else:
            seconds = dict(expected())
        return seconds.get(tool, 0.0) <= _FAR * min(seconds.values(), default=0.0) or tool not in seconds


def _wait(ratio: float) -> float:
    """The calls between two of a tool that takes ``ratio`` times as long as the best."""
    return min(_AGAIN * ratio**_POWER, _MOST)
