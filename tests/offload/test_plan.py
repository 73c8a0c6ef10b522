"""Tests the planners: properties of any schedule, the papers' examples, and brute force on small cases."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.errors import FastIOError
from fastio.offload.planning.infeasible import InfeasibleBudget
from fastio.offload.planning.overlap import finish_seconds, transfer_seconds
from fastio.offload.planning.schedule import POLICIES, ActivationProfile, Schedule, plan

MIB = 1 << 20
FORWARD_S = 1.0


@st.composite
def cases(draw: st.DrawFn, most: int = 10) -> tuple[list[ActivationProfile], int]:
    """Activations in forward order, mostly ready in that order, and a number of bytes to free that they have."""
    count = draw(st.integers(1, most))
    ready = draw(st.lists(st.floats(0, FORWARD_S * 1.1), min_size=count, max_size=count))
    if draw(st.integers(0, 3)):
        ready.sort()
    activations = [
        ActivationProfile(
            nbytes=draw(st.one_of(st.sampled_from([0, 1, 2, 4, 8]), st.integers(1, 100))),
            transfer_s=draw(st.floats(0, 0.5)),
            ratio=draw(st.one_of(st.sampled_from([1.0, 2.0]), st.floats(0.9, 6))),
            ready_s=at,
            kind=draw(st.sampled_from(["", "conv", "pool"])),
        )
        for at in ready
    ]
    total = sum(activation.nbytes for activation in activations)
    return activations, draw(st.integers(-3, total))


def subsets(activations: Sequence[ActivationProfile], need: int) -> Iterator[tuple[int, ...]]:
    for size in range(len(activations) + 1):
        for chosen in itertools.combinations(range(len(activations)), size):
            if sum(activations[i].nbytes for i in chosen) >= need:
                yield chosen


def paper(activations: Sequence[ActivationProfile], need: int, forward_s: float, strict: bool) -> tuple[int, ...]:
    """FlashNeuron's two phases as specified, without optimisation."""
    chosen: list[int] = []
    while sum(activations[i].nbytes for i in chosen) < need:
        chosen.append(len(chosen))
    test = transfer_seconds if strict else finish_seconds
    while test(activations, sorted(chosen)) > forward_s:
        plain = [i for i in chosen if activations[i].ratio <= 1]
        least = min((activations[i].ratio for i in chosen), default=0.0)
        given_up = max(plain or [i for i in chosen if activations[i].ratio == least])
        better = [
            i
            for i in range(len(activations))
            if i not in chosen and activations[i].ratio > max(1, activations[given_up].ratio)
        ]
        taken: list[int] = []
        for i in sorted(better, key=lambda i: (-activations[i].ratio, i)):
            if sum(activations[j].nbytes for j in taken) >= activations[given_up].nbytes:
                break
            taken.append(i)
        if sum(activations[j].nbytes for j in taken) < activations[given_up].nbytes:
            break
        chosen = [i for i in chosen if i != given_up] + taken
    return tuple(sorted(chosen))


def nbytes(activations: Sequence[ActivationProfile], schedule: Schedule) -> int:
    return sum(activations[i].nbytes for i in schedule.selected)


@given(cases(40), st.sampled_from(["flashneuron", "optimal", "all", "fastensor"]), st.booleans())
def test_schedule_frees_the_bytes_and_reports_its_cost(
    case: tuple[list[ActivationProfile], int], policy: str, strict: bool
) -> None:
    activations, need = case
    schedule = plan(activations, need, FORWARD_S, policy, strict)
    assert nbytes(activations, schedule) >= need
    assert list(schedule.selected) == sorted(set(schedule.selected))
    assert set(schedule.selected) <= set(range(len(activations)))
    assert schedule.transfer_s == math.fsum(activations[i].transfer_s / activations[i].ratio for i in schedule.selected)
    if policy == "fastensor":
        assert schedule.finish_s == FORWARD_S + schedule.transfer_s
        assert (schedule.status == "fits") == (schedule.transfer_s == 0)
        return
    finish = 0.0
    for i in schedule.selected:
        finish = max(finish, activations[i].ready_s) + activations[i].transfer_s / activations[i].ratio
    assert schedule.finish_s == finish
    assert schedule.status == ("fits" if (schedule.transfer_s if strict else finish) <= FORWARD_S else "delayed")


@given(cases(40), st.booleans())
def test_flashneuron_equals_the_two_phases_of_the_paper(
    case: tuple[list[ActivationProfile], int], strict: bool
) -> None:
    activations, need = case
    assert plan(activations, need, FORWARD_S, strict_paper=strict).selected == paper(
        activations, need, FORWARD_S, strict
    )


@given(cases(10), st.booleans())
def test_optimal_equals_the_best_of_all_subsets(case: tuple[list[ActivationProfile], int], strict: bool) -> None:
    activations, need = case
    test = transfer_seconds if strict else finish_seconds
    times = {chosen: transfer_seconds(activations, chosen) for chosen in subsets(activations, need)}
    hidden = [seconds for chosen, seconds in times.items() if test(activations, chosen) <= FORWARD_S]
    schedule = plan(activations, need, FORWARD_S, "optimal", strict)
    assert schedule.status == ("fits" if hidden else "delayed")
    assert schedule.transfer_s == pytest.approx(min(hidden or times.values()), rel=1e-9, abs=1e-300)


@given(cases(60), st.booleans())
def test_optimal_is_never_worse_than_flashneuron(case: tuple[list[ActivationProfile], int], strict: bool) -> None:
    activations, need = case
    paper = plan(activations, need, FORWARD_S, "flashneuron", strict)
    best = plan(activations, need, FORWARD_S, "optimal", strict)
    if paper.status == "fits":
        assert best.status == "fits"
    if best.status == paper.status:
        assert best.transfer_s <= paper.transfer_s


def test_tiny_transfer_times_are_planned() -> None:
    activations = [ActivationProfile(1, 0.0), ActivationProfile(2, 5e-324, 1.0, 1.0625)]
    for policy in ("flashneuron", "optimal"):
        assert plan(activations, 3, 1.0, policy).transfer_s == 5e-324


def test_rounding_of_sums_does_not_reject_a_schedule_at_the_limit() -> None:
    activations = [ActivationProfile(1, 0.1) for _ in range(10)]  # 0.1 added ten times in order is 0.9999999999999999
    for policy in ("flashneuron", "optimal"):
        assert plan(activations, 10, 1.0, policy).status == "fits"


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("policy", ["flashneuron", "optimal"])
def test_ten_thousand_activations_are_planned(policy: str, mixed: bool) -> None:
    """That it ends with a good plan. The benchmark measures that it takes under a second."""
    count = 10_000
    activations = [
        ActivationProfile(
            (1 + i * 7919 % 64) * MIB, 1e-4 * (1 + i * 104729 % 97), 1.0 + (i % 5) / 2 if mixed else 1.0, i * 1e-3
        )
        for i in range(count)
    ]
    need = sum(activation.nbytes for activation in activations) // 2
    schedule = plan(activations, need, 20.0, policy)
    assert nbytes(activations, schedule) >= need
    assert schedule.transfer_s <= plan(activations, need, 20.0, "flashneuron").transfer_s


def test_figure_6_gives_the_swaps_of_the_paper() -> None:
    """Seven tensors A to G, with a prefix that is too slow.

    Its last incompressible tensor is replaced by compressible ones.
    """
    ratios = {"A": 1.0, "B": 2.0, "C": 1.0, "D": 1.0, "E": 4.0, "F": 1.5, "G": 3.0}
    activations = [ActivationProfile(2 * MIB, 1.0, ratio) for ratio in ratios.values()]
    letters = "".join(ratios)

    def names(forward_s: float) -> tuple[str, str]:
        schedule = plan(activations, 6 * MIB, forward_s)
        return "".join(letters[i] for i in schedule.selected), schedule.status

    assert names(2.5) == ("ABC", "fits")  # phase 1
    assert names(2.0) == ("ABE", "fits")  # C for E
    assert names(1.1) == ("BEG", "fits")  # A for G
    assert names(1.0) == ("BEG", "delayed")  # F compresses less than B: no swap is left


def test_strict_paper_accepts_a_schedule_that_overruns_the_timeline() -> None:
    activations = [ActivationProfile(4, 0.2, 1.0, 0.1), ActivationProfile(4, 0.4, 1.0, 0.9)]
    strict = plan(activations, 8, 1.0, strict_paper=True)
    assert (strict.status, strict.transfer_s) == ("fits", pytest.approx(0.6))
    assert strict.finish_s == pytest.approx(1.3)
    assert plan(activations, 8, 1.0).status == "delayed"


def test_optimal_prefers_a_costlier_selection_that_hides() -> None:
    activations = [ActivationProfile(4, 0.5, 1.0, 0.0), ActivationProfile(4, 0.4, 1.0, 0.9)]
    assert plan(activations, 4, 1.0, "optimal").selected == (0,)
    assert plan(activations, 4, 1.0, "optimal", strict_paper=True).selected == (1,)
    assert plan(activations, 4, 0.1, "optimal") == Schedule((1,), 0.4, 1.3, "delayed")


@pytest.mark.parametrize("need", [0, -1, -MIB])
@pytest.mark.parametrize("policy", ["flashneuron", "optimal", "vdnn-dyn"])
def test_no_need_moves_nothing(policy: str, need: int) -> None:
    assert plan([ActivationProfile(MIB, 1.0)], need, 0.5, policy) == Schedule((), 0.0, 0.0, "fits")


@pytest.mark.parametrize("policy", POLICIES)
def test_no_activations_give_an_empty_schedule(policy: str) -> None:
    assert plan([], 0, 1.0, policy).selected == ()


@pytest.mark.parametrize("policy", [*POLICIES, lambda activations, need, forward_s: range(len(activations))])
def test_infeasible_need_raises_an_error_with_the_bytes(policy: str) -> None:
    with pytest.raises(InfeasibleBudget, match=r"needed 11 bytes, got 10 bytes; make the budget larger") as raised:
        plan([ActivationProfile(4, 0.1, kind="conv"), ActivationProfile(6, 0.1, kind="pool")], 11, 1.0, policy)
    assert isinstance(raised.value, FastIOError)
    assert (raised.value.need, raised.value.got) == (11, 10)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_policy_that_frees_too_little_names_a_policy_that_can() -> None:
    activations = [ActivationProfile(4, 0.1, kind="conv"), ActivationProfile(6, 0.1, kind="fc")]
    with pytest.raises(InfeasibleBudget, match=r"'vdnn-conv' moves out: needed 5 bytes, got 4 bytes; use policy 'all'"):
        plan(activations, 5, 1.0, "vdnn-conv")
    with pytest.raises(InfeasibleBudget, match="'nobody' moves out"):
        plan(activations, 5, 1.0, nobody)


def nobody(activations: Sequence[ActivationProfile], need_bytes: int, forward_s: float) -> tuple[int, ...]:
    return ()


@pytest.mark.parametrize("wrong", [None, 3, [0.0], ["a"], [-1], [2]])
def test_wrong_callable_policy_raises_an_error(wrong: object) -> None:
    activations = [ActivationProfile(8, 1.0, 2.0)] * 2
    with pytest.raises((TypeError, ValueError), match=r"the policy (function returned|selected activation) .*expected"):
        plan(activations, 8, 1.0, lambda *_: wrong)  # type: ignore[arg-type, return-value]


def test_callable_policy_selects() -> None:
    activations = [ActivationProfile(4, 0.25), ActivationProfile(6, 0.5), ActivationProfile(8, 0.5)]
    schedule = plan(activations, 8, 1.0, lambda activations, need, forward_s: [2, 0, 2])
    assert schedule == Schedule((0, 2), 0.75, 0.75, "fits")
    with pytest.raises(ValueError, match="activation 3: expected 0 to 2"):
        plan(activations, 8, 1.0, lambda activations, need, forward_s: [3])


def test_vdnn_selects_by_kind() -> None:
    activations = [ActivationProfile(4, 0.1, kind=kind) for kind in ("conv", "pool", "conv", "fc", "")]
    assert plan(activations, 0, 1.0, "vdnn-all").selected == (0, 1, 2)
    assert plan(activations, 0, 1.0, "vdnn-conv").selected == (0, 2)
    assert plan(activations, 5, 1.0, "vdnn-dyn").selected == (0, 2)
    assert plan(activations, 9, 1.0, "vdnn-dyn").selected == (0, 1, 2)


def test_invalid_arguments_raise_value_error() -> None:
    with pytest.raises(ValueError, match="unknown policy 'best': expected one of all, flashneuron"):
        plan([], 0, 1.0, "best")
    for forward_s in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="forward_s"):
            plan([], 0, forward_s)
    for wrong in ({"nbytes": -1}, {"transfer_s": math.nan}, {"ratio": 0.0}, {"ready_s": -1.0}):
        with pytest.raises(ValueError, match=f"ActivationProfile.{next(iter(wrong))} is"):
            ActivationProfile(**{"nbytes": 1, "transfer_s": 1.0, **wrong})
