"""Tests the simulator: hand-computed iterations, invariants of every iteration, and the largest batches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.schedule import plan
from fastio.offload.planning.timeline import Timeline, Transfer
from fastio_bench.papers.capacity import Workload, calibrated_batch, iterate, largest_as_fast, largest_runnable
from fastio_bench.papers.simulation import simulate

FORWARD_S, BACKWARD_S = 4.0, 8.0
CHAIN = [ActivationProfile(10, 0.5, 1.0, float(at)) for at in range(4)]


@st.composite
def blob_lists(draw: st.DrawFn) -> list[ActivationProfile]:
    ready = sorted(draw(st.lists(st.floats(0, FORWARD_S), min_size=1, max_size=12)))
    return [
        ActivationProfile(draw(st.integers(0, 50)), draw(st.floats(0, 1)), draw(st.floats(1, 4)), at) for at in ready
    ]


def chosen_of(activations: list[ActivationProfile], bits: int) -> list[int]:
    return [i for i in range(len(activations)) if bits >> i & 1]


def attempt(
    activations: list[ActivationProfile], chosen: list[int], budget: int | None, synchronous: bool = False
) -> Timeline | InfeasibleBudget:
    try:
        return simulate(activations, chosen, FORWARD_S, BACKWARD_S, budget=budget, synchronous=synchronous)
    except InfeasibleBudget as error:
        return error


def test_transfers_that_hide_cause_no_stall() -> None:
    timeline = simulate(CHAIN, range(4), FORWARD_S, BACKWARD_S, budget=20)
    assert timeline.writes == tuple(Transfer(i, i, i + 0.5) for i in range(4))
    assert (timeline.forward_stall_s, timeline.backward_stall_s, timeline.iteration_s) == (0.0, 0.0, 12.0)
    # needed after 2, 4, 6 and 8 s of backward, with room for two: the third read waits for the first use
    assert timeline.reads == (Transfer(3, 4, 4.5), Transfer(2, 4.5, 5), Transfer(1, 6, 6.5), Transfer(0, 8, 8.5))
    assert timeline.peak_nbytes == 20
    assert timeline.slowdown == 1.0


def test_without_a_budget_everything_is_read_back_at_once() -> None:
    timeline = simulate(CHAIN, range(4), FORWARD_S, BACKWARD_S)
    assert [read.start_s for read in timeline.reads] == [4.0, 4.5, 5.0, 5.5]
    assert timeline.peak_nbytes == 40


def test_slow_channel_stalls_compute() -> None:
    slow = [ActivationProfile(10, 3.0, 1.0, float(at)) for at in range(4)]
    free = simulate(slow, range(4), FORWARD_S, BACKWARD_S)
    assert [write.finish_s for write in free.writes] == [3.0, 6.0, 9.0, 12.0]
    assert free.forward_stall_s == 8.0  # all of it waiting for the last write
    assert free.backward_stall_s == pytest.approx(4.0)  # 12 s of reads, the last needed after 8
    # Room for two: the third activation, ready after 2 s, waits for the first write, the fourth for the second.
    tight = simulate(slow, range(4), FORWARD_S, BACKWARD_S, budget=20)
    assert [write.start_s for write in tight.writes] == [0.0, 3.0, 6.0, 9.0]
    assert tight.forward_stall_s == 8.0
    assert tight.peak_nbytes == 20


def test_kept_activations_take_memory_until_their_use() -> None:
    timeline = simulate(CHAIN, [0], FORWARD_S, BACKWARD_S, budget=30)
    assert timeline.peak_nbytes == 30
    assert timeline.reads == (Transfer(0, 6.0, 6.5),)  # when the last activation has been used
    with pytest.raises(
        InfeasibleBudget, match=r"activation 3 in the forward pass: needed 30 bytes, got 29 bytes; move out more"
    ):
        simulate(CHAIN, [0], FORWARD_S, BACKWARD_S, budget=29)


def test_reads_follow_their_own_times_and_order() -> None:
    timeline = simulate(
        CHAIN, [0, 1], FORWARD_S, BACKWARD_S, read_s=[2.0, 3.0, 9.0, 9.0], needed_s=[1.0, 2.0, 3.0, 4.0]
    )
    assert timeline.reads == (Transfer(0, 4.0, 6.0), Transfer(1, 6.0, 9.0))
    assert timeline.backward_stall_s == 3.0  # one second for the first, two more for the second


def test_synchronous_transfers_hide_nothing() -> None:
    timeline = simulate(CHAIN, range(4), FORWARD_S, BACKWARD_S, synchronous=True, budget=10)
    assert (timeline.forward_stall_s, timeline.backward_stall_s) == (2.0, 2.0)
    assert timeline.iteration_s == 16.0
    assert timeline.peak_nbytes == 10


@given(blob_lists(), st.integers(0, 1 << 12), st.one_of(st.none(), st.integers(0, 200)), st.booleans())
def test_invariants_of_every_iteration(
    activations: list[ActivationProfile], bits: int, budget: int | None, synchronous: bool
) -> None:
    chosen = chosen_of(activations, bits)
    timeline = attempt(activations, chosen, budget, synchronous)
    if isinstance(timeline, InfeasibleBudget):
        assert timeline.got == budget
        assert timeline.got < timeline.need <= sum(activation.nbytes for activation in activations)
        return
    assert (
        sorted(write.activation for write in timeline.writes)
        == sorted(read.activation for read in timeline.reads)
        == chosen
    )
    for transfers in (timeline.writes, timeline.reads):
        for transfer in transfers:
            assert transfer.finish_s == transfer.start_s + activations[transfer.activation].stored_s
        for earlier, later in itertools.pairwise(transfers):
            assert later.start_s >= earlier.finish_s
    drained = FORWARD_S + timeline.forward_stall_s
    for write in timeline.writes:
        assert write.start_s >= activations[write.activation].ready_s
        assert write.finish_s <= drained + 1e-9
    for read in timeline.reads:
        assert drained - 1e-9 <= read.start_s
        assert read.finish_s <= timeline.iteration_s + 1e-9
    assert min(timeline.forward_stall_s, timeline.backward_stall_s) >= 0
    kept = sum(activation.nbytes for i, activation in enumerate(activations) if i not in chosen)
    assert max([kept, *(activation.nbytes for activation in activations)]) <= timeline.peak_nbytes
    assert timeline.peak_nbytes <= sum(activation.nbytes for activation in activations)
    assert budget is None or timeline.peak_nbytes <= budget
    if synchronous:
        moved = sum(activations[i].stored_s for i in chosen)
        assert timeline.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S + 2 * moved)


@given(blob_lists(), st.floats(0, 1), st.sampled_from(["flashneuron", "optimal", "all"]))
def test_planner_and_simulator_agree(activations: list[ActivationProfile], share: float, policy: str) -> None:
    need = int(share * sum(activation.nbytes for activation in activations))
    schedule = plan(activations, need, FORWARD_S, policy)
    timeline = simulate(activations, schedule.selected, FORWARD_S, BACKWARD_S)
    assert max((write.finish_s for write in timeline.writes), default=0.0) == schedule.finish_s
    assert timeline.forward_stall_s == max(0.0, schedule.finish_s - FORWARD_S)
    if schedule.status == "fits":  # reads in mirrored order take no longer than the writes
        assert timeline.slowdown == pytest.approx(1)


@given(blob_lists(), st.integers(0, 1 << 12))
def test_more_memory_is_never_slower(activations: list[ActivationProfile], bits: int) -> None:
    chosen = chosen_of(activations, bits)
    times = []
    for budget in range(0, sum(activation.nbytes for activation in activations) + 1, 5):
        timeline = attempt(activations, chosen, budget)
        if isinstance(timeline, InfeasibleBudget):
            assert not times
        else:
            times.append(timeline.iteration_s)
    assert all(earlier >= later - 1e-9 for earlier, later in itertools.pairwise(times))


def test_slowdown_without_compute_is_1_or_infinite() -> None:
    assert simulate([], [], 0.0, 0.0).slowdown == 1.0
    timeline = simulate([ActivationProfile(1, 1.0)], [0], 0.0, 0.0)
    assert isinstance(timeline, Timeline)
    assert timeline.iteration_s == 2.0
    assert timeline.slowdown == float("inf")


# At batch 1: eight activations of 10 bytes, each 0.6 s to move, ready every half second of a forward pass of 4 s.
UNIT = Workload(
    tuple(ActivationProfile(10, 0.6, 1.0, at / 2) for at in range(8)), 4.0, 8.0, fixed_nbytes=100, working_nbytes=5
)


def at_batch(batch: int) -> Workload:
    return UNIT.scaled(batch)


def test_largest_batches_equal_hand_computed_ones() -> None:
    memory = 100 + 2 * (80 + 5)  # plain training has room for batch 2
    assert iterate(at_batch(2), memory).writes == ()
    fast = largest_as_fast(at_batch, memory)
    runs = largest_runnable(at_batch, memory)
    assert 2 < fast < runs
    assert iterate(at_batch(fast), memory).slowdown <= 1
    assert iterate(at_batch(fast + 1), memory).slowdown > 1
    iterate(at_batch(runs), memory)
    with pytest.raises(InfeasibleBudget):
        iterate(at_batch(runs + 1), memory)
    # one activation and the working set, 15 bytes at batch 1, is the least that a batch needs
    assert runs == (memory - 100) // 15


def test_synchronous_offload_runs_the_same_batch_but_never_as_fast() -> None:
    memory = 100 + 2 * 85
    assert largest_runnable(at_batch, memory, "fastensor") == largest_runnable(at_batch, memory, "all")
    assert largest_as_fast(at_batch, memory, "fastensor") == 0
    assert largest_as_fast(at_batch, memory, "fastensor", slack=0.9) > 0


def test_largest_batch_is_0_or_the_limit_at_the_extremes() -> None:
    assert largest_runnable(at_batch, 104) == 0
    assert largest_runnable(at_batch, 100 + 85 * 1000, limit=77) == 77


@pytest.mark.parametrize(
    ("plain", "fitted", "hidden"),
    [(4, 7, 0.43), (4, 8, 0.5), (1, 3, 0.67), (20, 36, 0.45)],
    ids=["ResNet-1922", "DenseNet-1001", "BERT-XLarge", "HBMP"],
)
def test_calibrated_shares_reproduce_table_3_of_flashneuron(plain: int, fitted: int, hidden: float) -> None:
    """Calibrated: the shares come from the table, so this only shows that the formula can express it."""
    assert calibrated_batch(plain, hidden) == fitted
