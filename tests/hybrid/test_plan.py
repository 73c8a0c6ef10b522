"""Compares MemFerry's planners with brute force, on random layers and on layers with a known result."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.hybrid import GpuBudgetError, LayerCosts, plan, simulate
from fastio.hybrid.planning.backward import backward
from fastio.hybrid.planning.backward_prefetch import admit, in_time
from fastio.hybrid.planning.gradient_placement import stay_on_gpu
from fastio.hybrid.planning.memferry import memferry

GFGB, DHA, DFGB = "GFGB", "DHA", "DFGB"


def layer(random: random.Random) -> LayerCosts:
    """Reading in place takes between as long as from the GPU, and much longer than copying first."""
    copy_s, forward_s = random.uniform(0.1, 4), random.uniform(0.1, 2)
    slower = random.choice([random.uniform(0, 0.5), random.uniform(0.5, 2), random.uniform(1, 6)])
    return LayerCosts(
        copy_s,
        forward_s,
        forward_s + slower * copy_s,
        2 * forward_s,
        2 * forward_s + 1.5 * slower * copy_s,
        random.choice([0.0, random.uniform(0, 0.5)]),
        math.ceil(100 * copy_s),
    )


def least_forward(costs: Sequence[LayerCosts]) -> float:
    return min(simulate(costs, modes) for modes in itertools.product((GFGB, DHA), repeat=len(costs)))


def instances(count: int, most: int, seed: int = 1) -> list[list[LayerCosts]]:
    source = random.Random(seed)
    return [[layer(source) for _ in range(source.randint(1, most))] for _ in range(count)]


layers = st.builds(
    LayerCosts,
    *[st.floats(0, 5)] * 3,
    backward_s=st.floats(0, 5),
    backward_dha_s=st.floats(0, 9),
    between_s=st.floats(0, 1),
    nbytes=st.integers(0, 50),
)


def test_simulate_copies_one_layer_at_a_time_in_order() -> None:
    costs = [LayerCosts(3, 1, 2, between_s=0.5), LayerCosts(2, 1, 9), LayerCosts(4, 1, 2)]
    assert simulate(costs, [GFGB, GFGB, GFGB]) == 10  # copies end at 3, 5 and 9
    assert simulate(costs, [DHA, GFGB, DHA]) == 2.5 + 1 + 2
    assert simulate(costs, [DHA, GFGB, DFGB]) == simulate(costs, [DHA, GFGB, DHA])
    assert simulate([], []) == 0
    with pytest.raises(ValueError, match="2 modes for 3 layers"):
        simulate(costs, [DHA, DHA])
    with pytest.raises(ValueError, match="layer 1 has mode 'CPU'"):
        simulate(costs, [DHA, "CPU", DHA])


@pytest.mark.slow
def test_memferry_is_near_the_optimum_and_never_worse_than_copying_all() -> None:
    excess = []
    for costs in instances(1500, 10):
        found = plan(costs).forward_s
        assert found <= simulate(costs, [GFGB] * len(costs)) + 1e-12
        excess.append(found / least_forward(costs))
    assert statistics.mean(excess) <= 1.03


def test_optimal_equals_brute_force() -> None:
    for costs in instances(300, 8, seed=2):
        assert plan(costs, planner="optimal").forward_s == pytest.approx(least_forward(costs), rel=1e-12)


@given(st.lists(layers, max_size=7))
@settings(deadline=None)
def test_planners_rank_as_expected(costs: list[LayerCosts]) -> None:
    everything = simulate(costs, [GFGB] * len(costs))
    best, paper = (plan(costs, planner=name).forward_s for name in ("optimal", "memferry"))
    assert best <= paper + 1e-9
    assert paper <= everything + 1e-9
    assert best == pytest.approx(least_forward(costs), abs=1e-9)
    assert plan(costs, planner="zero-offload").modes == (GFGB,) * len(costs)


def test_optimal_plans_a_deep_network_no_worse_than_the_paper() -> None:
    source = random.Random(3)
    costs = [layer(source) for _ in range(400)]
    best, paper = plan(costs, planner="optimal"), plan(costs)
    assert best.forward_s <= paper.forward_s
    assert best.forward_s >= sum(min(one.forward_s, one.forward_dha_s) + one.between_s for one in costs)


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(-1, 5)), max_size=9), st.integers(0, 150))
@settings(deadline=None)
def test_gradient_knapsack_equals_brute_force(items: list[tuple[int, float]], room: int) -> None:
    sizes, gains = [size for size, _ in items], [gain for _, gain in items]
    stay = stay_on_gpu(sizes, gains, room)
    assert list(stay) == sorted(set(stay))
    assert sum(sizes[i] for i in stay) <= room
    choices = (c for n in range(len(items) + 1) for c in itertools.combinations(range(len(items)), n))
    best = max(sum(gains[i] for i in c) for c in choices if sum(sizes[i] for i in c) <= room)
    assert sum(gains[i] for i in stay) == pytest.approx(best, abs=1e-9)


@given(st.lists(layers, min_size=1, max_size=7), st.floats(0, 1))
@settings(deadline=None)
def test_gradient_reserve_bounds_the_gradients_that_stay(costs: list[LayerCosts], reserve: float) -> None:
    total = sum(one.nbytes for one in costs)
    host = plan(costs, gradient_reserve=reserve).gradients_on_host
    assert sum(one.nbytes for i, one in enumerate(costs) if i not in host) <= reserve * total + 1e-9 or reserve == 1
    assert plan(costs, gradient_reserve=1.0).gradients_on_host == ()


@given(st.lists(layers, min_size=1, max_size=8))
@settings(deadline=None)
def test_dfgb_copies_are_in_time_and_do_not_delay_forward(costs: list[LayerCosts]) -> None:
    found = plan(costs)
    early = [DHA if mode == DFGB else mode for mode in found.modes]
    assert found.forward_s == simulate(costs, early)
    ends = list(itertools.accumulate([0.0] * len(costs)))
    now = copied = 0.0
    for i, (one, mode) in enumerate(zip(costs, early, strict=True)):
        copied += one.copy_s if mode == GFGB else 0.0
        now = (max(now, copied) + one.forward_s if mode == GFGB else now + one.forward_dha_s) + one.between_s
        ends[i] = now
    assert in_time(costs, found.modes, ends)


def test_dfgb_is_admitted_if_there_is_time_and_room() -> None:
    read_in_place = LayerCosts(1.0, 1.0, 1.1, 1.0, 5.0, nbytes=10)
    costs = [read_in_place, LayerCosts(0.1, 4.0, 9.0, 4.0, 9.0, nbytes=5)]
    assert plan(costs).modes == (DFGB, GFGB)
    assert plan(costs, gpu_bytes=14).modes == (DHA, GFGB)
    rushed = [read_in_place, LayerCosts(0.1, 0.1, 9.0, 0.1, 9.0, nbytes=5)]
    assert plan(rushed).modes == (DHA, GFGB)  # backward begins before the copy could end


def test_dfgb_is_left_out_where_it_saves_next_to_no_time() -> None:
    """GPU memory is worth more: a layer whose backward in place is no slower, or hidden behind gradients that move."""
    tail = LayerCosts(20.0, 4.0, 90.0, 1.0, 90.0, nbytes=200)
    slower = LayerCosts(1.0, 1.0, 1.1, 1.0, 5.0, nbytes=10)
    assert plan([slower, tail]).modes == (DFGB, GFGB)
    assert plan([slower, tail], gradient_reserve=0.0).modes == (DHA, GFGB), "its gradient waits for the tail's anyway"
    barely = LayerCosts(1.0, 1.0, 1.1, 1.0, 1.01, nbytes=10)
    assert plan([barely, tail]).modes == (DHA, GFGB)
    assert plan([slower, barely, tail]).modes == (DFGB, DHA, GFGB)


@given(st.lists(layers, min_size=1, max_size=7), st.floats(0, 1))
@settings(deadline=None)
def test_leaving_out_dfgb_costs_a_thousandth_at_most(costs: list[LayerCosts], reserve: float) -> None:
    found = plan(costs, gradient_reserve=reserve)
    admitted = admit(costs, plan(costs, planner=memferry).modes)
    assert all(one == other or (one, other) == (DHA, DFGB) for one, other in zip(found.modes, admitted, strict=True))
    times = [
        backward(costs, modes, found.gradients_on_host, found.forward_s).end_s for modes in (found.modes, admitted)
    ]
    assert times[0] <= times[1] * 1.001 + 1e-9


@given(st.lists(layers, min_size=1, max_size=7), st.integers(0, 200), st.sampled_from(["memferry", "optimal"]))
@settings(deadline=None)
def test_plan_keeps_to_gpu_bytes(costs: list[LayerCosts], allowed: int, planner: str) -> None:
    if allowed < max(one.nbytes for one in costs):
        with pytest.raises(GpuBudgetError, match="largest layer"):
            plan(costs, planner=planner, gpu_bytes=allowed)
        return
    modes = plan(costs, planner=planner, gpu_bytes=allowed).modes
    assert sum(one.nbytes for one, mode in zip(costs, modes, strict=True) if mode != DHA) <= allowed


def test_invalid_input_raises_an_error_that_says_what_to_change() -> None:
    costs = [LayerCosts(1, 1, 1, nbytes=10)] * 3
    with pytest.raises(GpuBudgetError, match="use planner 'memferry'"):
        plan(costs, planner="zero-offload", gpu_bytes=20)
    with pytest.raises(ValueError, match="expected one of memferry, optimal, zero-offload"):
        plan(costs, planner="best")
    with pytest.raises(ValueError, match="a share from 0 to 1"):
        plan(costs, gradient_reserve=1.5)
    with pytest.raises(ValueError, match="copy_s is -1"):
        LayerCosts(-1, 1, 1)
    with pytest.raises(ValueError, match="forward_s is inf"):
        LayerCosts(1, math.inf, 1)
    assert plan([]).modes == ()
