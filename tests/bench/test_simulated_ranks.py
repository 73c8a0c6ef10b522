"""The simulation of many ranks: what must hold of it whatever the numbers."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from fastio_bench.checkpoint.simulated_system import Job, System
from fastio_bench.checkpoint.simulation import (
    CONSOLIDATED,
    LAYOUTS,
    ONE_FOLDER,
    SUBFOLDERS,
    arrivals_of,
    served,
    shared,
    simulate,
)
from fastio_bench.machine import others

RANKS = st.integers(1, 600)
SIZES = st.floats(1e6, 1e12)
FLOWS = st.lists(st.tuples(st.floats(0, 10), st.floats(1, 1e6)), min_size=1, max_size=40).map(sorted)
RATES = st.floats(1e3, 1e6)


@given(FLOWS, RATES, RATES)
def test_shared_bandwidth_is_neither_exceeded_nor_left_unused(
    flows: list[tuple[float, float]], bandwidth: float, most: float
) -> None:
    ends = shared(flows, bandwidth, most)
    total = sum(nbytes for _, nbytes in flows)
    for (begin, nbytes), end in zip(flows, ends, strict=True):
        assert end >= begin + nbytes / min(most, bandwidth) - 1e-6 * end
    assert max(ends) >= flows[0][0] + total / bandwidth - 1e-6 * max(ends)
    assert max(ends) <= max(begin for begin, _ in flows) + total / min(bandwidth, most) + 1e-6 * max(ends)


def test_equal_flows_share_and_a_limit_of_each_holds() -> None:
    assert shared([(0.0, 100.0), (0.0, 100.0)], 100.0, 1e9) == pytest.approx([2.0, 2.0])
    assert shared([(0.0, 100.0), (0.0, 300.0)], 100.0, 1e9) == pytest.approx([2.0, 4.0])
    assert shared([(0.0, 100.0), (0.5, 100.0)], 100.0, 1e9) == pytest.approx([1.5, 2.0])
    assert shared([(0.0, 100.0), (5.0, 100.0)], 100.0, 50.0) == pytest.approx([2.0, 7.0])


@given(st.lists(st.floats(0, 10), min_size=1, max_size=40).map(sorted), st.floats(1e-3, 1))
def test_a_server_takes_one_operation_at_a_time(arrivals: list[float], each: float) -> None:
    ends = served(arrivals, each)
    assert all(end >= at + each - 1e-9 for at, end in zip(arrivals, ends, strict=True))
    assert all(later - end >= each - 1e-9 for end, later in pairwise(ends))
    assert ends[-1] <= arrivals[-1] + each * len(arrivals) + 1e-9


@given(RANKS, st.floats(0, 100))
def test_first_rank_is_there_at_once_and_the_others_follow(ranks: int, straggling: float) -> None:
    found = arrivals_of(ranks, straggling)
    assert found == sorted(found)
    assert found[0] == 0
    assert sum(found) / ranks <= straggling + 1e-9


@given(st.sampled_from(LAYOUTS), RANKS, SIZES)
def test_times_add_up_and_no_limit_of_the_system_is_beaten(layout: str, ranks: int, nbytes: float) -> None:
    system, job = System(), Job(ranks, nbytes)
    found = simulate(layout, job, system)
    rate = min(system.bandwidth, ranks * system.rank_bandwidth)
    assert found.total == pytest.approx(found.written + found.commit)
    assert found.written >= found.straggling + found.planned + nbytes / rate
    assert found.operations >= found.operations_by_rank_0 >= found.operations_by_rank > 0
    assert found.bytes_by_rank >= nbytes / ranks * (1 - 1e-9)
    assert all(math.isfinite(number) and number >= 0 for number in found[1:] if isinstance(number, float))


@given(RANKS, SIZES, st.floats(0, 10))
def test_stragglers_delay_a_save_by_as_much_as_the_last_one(ranks: int, nbytes: float, straggling: float) -> None:
    prompt, late = (simulate(ONE_FOLDER, Job(ranks, nbytes), System(straggling=mean)) for mean in (0.0, straggling))
    assert late.total - prompt.total == pytest.approx(late.straggling, abs=1e-6 * late.total)


@given(st.sampled_from(LAYOUTS), st.integers(1, 300), SIZES)
def test_more_ranks_are_more_operations_and_gathered_bytes(layout: str, ranks: int, nbytes: float) -> None:
    few, many = (simulate(layout, Job(count, nbytes), System()) for count in (ranks, 2 * ranks))
    assert many.operations > few.operations
    assert many.gathered == pytest.approx(2 * few.gathered)


def test_what_the_docs_decide_holds_at_4096_ranks() -> None:
    found = {layout: simulate(layout, Job(4096, 840e9), System()) for layout in LAYOUTS}
    assert found[SUBFOLDERS].queue < found[ONE_FOLDER].queue < 0.1 * found[ONE_FOLDER].total
    assert abs(found[SUBFOLDERS].total / found[ONE_FOLDER].total - 1) < 0.05
    assert found[ONE_FOLDER].planned > 10 * found[ONE_FOLDER].queue
    assert found[CONSOLIDATED].operations > 50 * found[ONE_FOLDER].operations


def test_command_says_that_it_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio_bench.checkpoint.options import checkpoint

    monkeypatch.setattr(others, "remark", lambda busy, processors: ["a busy machine"])
    result = CliRunner().invoke(checkpoint, ["--simulate-ranks", "64"])
    assert result.exit_code == 0, result.output
    assert "A save by 64 ranks (simulated)" in result.output
    assert "Until it is visible (simulated)" in result.output
    assert "a busy machine" not in result.output  # nothing was measured
