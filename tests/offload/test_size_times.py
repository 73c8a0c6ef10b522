"""The times of tools by exact sizes: what is tried, what is used, and how changes are noticed."""

from __future__ import annotations

from collections import Counter

import pytest

from fastio.offload.stores.size_times import SizeTimes
from fastio.offload.stores.tool_file import Tally

MIB = 1 << 20
TOOLS = ("a", "b", "c", "d")


def nothing() -> dict[str, float]:
    return {}


def train(times: SizeTimes, nbytes: int, calls: int, seconds: dict[str, tuple[float, float]]) -> Counter[str]:
    """Write and read by the tools that are chosen; how often each was."""
    used: Counter[str] = Counter()
    for _ in range(calls):
        order = times.order(nbytes, TOOLS, nothing) or TOOLS
        assert sorted(order) == sorted(TOOLS)
        tool = order[0]
        used[tool] += 1
        for direction, took in zip("wr", seconds[tool], strict=True):
            times.observe(direction, nbytes, tool, took)
    return used


SECONDS = {"a": (4.0, 4.0), "b": (2.0, 1.0), "c": (1.0, 2.5), "d": (9.0, 0.5)}


@pytest.mark.parametrize(("mode", "best"), [("w+r", "b"), ("w", "c"), ("r", "d")])
def test_best_by_the_mode_is_used_after_one_try_of_each(mode: str, best: str) -> None:
    times = SizeTimes(mode)
    assert times.order(MIB, TOOLS, nothing) == ()
    first = train(times, MIB, 4, SECONDS)
    assert first == dict.fromkeys(TOOLS, 1)
    used = train(times, MIB, 300, SECONDS)
    assert used.most_common(1)[0][0] == best
    assert used[best] > 280


def test_slower_tools_are_tried_again_and_the_rarer_the_slower_they_are() -> None:
    times = SizeTimes("w+r")
    used = train(times, MIB, 2000, {"a": (1.0, 1.0), "b": (1.0, 1.1), "c": (1.2, 1.2), "d": (5.0, 5.0)})
    assert used["a"] > used["b"] > used["c"] > used["d"] >= 3


def test_tool_that_became_slower_is_left_for_the_second_and_taken_back() -> None:
    times = SizeTimes("w+r")
    train(times, MIB, 100, SECONDS)
    slower = SECONDS | {"b": (8.0, 8.0)}
    assert train(times, MIB, 100, slower)["c"] > 70
    assert train(times, MIB, 2000, SECONDS)["b"] > 1000


def test_tool_far_slower_at_the_nearest_size_is_not_tried_at_another() -> None:
    times = SizeTimes("w+r")
    train(times, MIB, 50, SECONDS)
    used = train(times, 4 * MIB, 100, SECONDS)
    assert used["b"] > 90
    assert used["c"] >= 1
    assert used["a"] == used["d"] == 0


def test_expected_times_rule_out_tools_that_no_size_knows() -> None:
    times = SizeTimes("w+r")
    times.observe("w", MIB, "b", 1.0)
    expected = {"a": 0.5, "b": 1.0, "c": 9.0}
    tried = set()
    for _ in range(40):
        tool = times.order(MIB, TOOLS, lambda: expected)[0]
        tried.add(tool)
        times.observe("w", MIB, tool, 1.0)
    assert tried == {"a", "b", "d"}


def test_failed_tool_is_used_only_if_none_else_is_left() -> None:
    times = SizeTimes("w+r")
    times.observe("w", MIB, "b", 1.0)
    times.fail(MIB, "b")
    assert times.order(MIB, TOOLS, nothing)[0] != "b"
    assert times.order(MIB, ("b",), nothing) == ("b",)


def test_failed_tool_is_still_used_at_smaller_sizes_and_later_again_at_its_own() -> None:
    times = SizeTimes("w+r")
    for nbytes in (MIB // 4, MIB, 4 * MIB):
        train(times, nbytes, 50, SECONDS)
    times.fail(MIB, "b")
    assert train(times, MIB // 4, 50, SECONDS)["b"] > 40
    assert train(times, MIB, 50, SECONDS)["b"] == train(times, 4 * MIB, 50, SECONDS)["b"] == 0
    assert train(times, MIB, 2000, SECONDS)["b"] > 1000


def test_devices_have_times_of_their_own() -> None:
    tally = Tally("w+r")
    one, other = tally.times("cpu"), tally.times("gpu")
    assert one is not None
    assert other is not None
    one.observe("w", MIB, "b", 1.0)
    assert one.order(MIB, TOOLS, nothing)
    assert other.order(MIB, TOOLS, nothing) == ()
