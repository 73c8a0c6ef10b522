"""Tests the planner that keeps, moves or recomputes: against brute force, and against moving or recomputing alone."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Collection, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastio.offload.planning import joint as planner
from fastio.offload.planning.joint import Choice, joint
from fastio.offload.planning.optimal import optimal
from fastio.offload.planning.overlap import ActivationProfile
from fastio.offload.planning.step import RecomputeOption, Step

FORWARD_S, BACKWARD_S = 1.0, 2.0


@st.composite
def steps(draw: st.DrawFn, most: int) -> tuple[Step, int]:
    """A step, and a number of bytes to free that its activations have."""
    count = draw(st.integers(1, most))
    ready = sorted(draw(st.lists(st.floats(0, FORWARD_S), min_size=count, max_size=count)))
    sizes = draw(st.lists(st.one_of(st.sampled_from([0, 4, 8]), st.integers(1, 100)), min_size=count, max_size=count))
    seconds = st.one_of(st.sampled_from([0.0, 0.1, 0.5]), st.floats(0, 1))
    options = {
        i: RecomputeOption(draw(seconds), tuple(draw(st.sets(st.integers(0, i - 1), max_size=2))) if i else ())
        for i in sorted(draw(st.sets(st.integers(0, count - 1))))
    }
    step = Step(
        [ActivationProfile(size, draw(seconds), 1.0, at) for size, at in zip(sizes, ready, strict=True)],
        FORWARD_S,
        BACKWARD_S,
        sorted(draw(st.lists(st.tuples(st.floats(0, BACKWARD_S), st.integers(0, count - 1)), max_size=2 * count))),
        [draw(seconds) for _ in range(count)],
        options,
        deepest=draw(st.sampled_from([1, 2, 8])),
        window=draw(st.sampled_from([0, 30, 150])),
    )
    return step, draw(st.integers(-3, sum(sizes)))


def ways(step: Step, need: int) -> Iterator[tuple[set[int], set[int]]]:
    """Everything that can be moved and recomputed to free enough."""
    count = len(step.activations)
    for way in itertools.product(*[(0, 1, 2) if i in step.options else (0, 1) for i in range(count)]):
        moved, recomputed = ({i for i in range(count) if way[i] == kind} for kind in (1, 2))
        if sum(step.activations[i].nbytes for i in moved | recomputed) >= need:
            yield moved, recomputed


def simulated(step: Step, moved: Collection[int], recomputed: Collection[int]) -> float:
    """The model in other words: two clocks, of compute and of the channel."""
    out = late = 0.0
    waiting: list[tuple[float, int]] = []
    for i in sorted(moved):
        now = step.activations[i].ready_s + late
        out = max(out, now) + step.activations[i].stored_s
        waiting.append((out, step.activations[i].nbytes))
        while sum(nbytes for end, nbytes in waiting if end > now) > step.window:
            now = min(end for end, _ in waiting if end > now)
        late = now - step.activations[i].ready_s
    compute = at = 0.0
    channel = max(0.0, out - step.forward_s - late)
    there: set[int] = set()
    for needed, i in step.uses:
        compute += needed - at
        at = needed
        todo = [(i, 1)]
        while todo:
            each, depth = todo.pop()
            if depth < 0:  # its sources are there now
                compute += step.options[each].seconds
            elif each in there:
                continue
            elif each in moved:
                there.add(each)
                channel += step.read_s[each]
                compute = max(compute, channel)
            elif each in recomputed:
                if depth > step.deepest:
                    return math.inf
                there.add(each)
                todo.append((each, -1))
                todo += [(source, depth + 1) for source in reversed(step.options[each].sources)]
            else:
                there.add(each)
    return step.forward_s + late + compute + step.backward_s - at


def check(step: Step, need: int, choice: Choice) -> None:
    assert not set(choice.moved) & set(choice.recomputed)
    assert set(choice.recomputed) <= set(step.options)
    assert sum(step.activations[i].nbytes for i in (*choice.moved, *choice.recomputed)) >= need
    assert choice.seconds == step.seconds(choice.moved, choice.recomputed)


@settings(max_examples=150, deadline=None)
@given(steps(most=5))
def test_no_choice_is_faster(case: tuple[Step, int]) -> None:
    step, need = case
    choice = joint(step, need)
    check(step, need, choice)
    least = min(simulated(step, moved, recomputed) for moved, recomputed in ways(step, need))
    assert choice.seconds == pytest.approx(least, rel=1e-9)


@settings(max_examples=300, deadline=None)
@given(steps(most=6), st.data())
def test_model_equals_two_clocks(case: tuple[Step, int], data: st.DataObject) -> None:
    step, need = case
    moved, recomputed = data.draw(st.sampled_from(list(ways(step, need))))
    assert step.seconds(moved, recomputed) == pytest.approx(simulated(step, moved, recomputed), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(steps(most=14))
def test_search_is_never_worse_than_moving_alone_or_recomputing_all(case: tuple[Step, int]) -> None:
    step, need = case
    choice = joint(step, need)
    check(step, need, choice)
    alone = optimal(step.activations, need, step.forward_s)
    assert choice.seconds <= step.seconds(alone, ())
    if sum(step.activations[i].nbytes for i in step.options) >= need:
        assert choice.seconds <= step.seconds((), step.options)


def drawn(chance: random.Random, count: int) -> tuple[Step, int]:
    sizes = [chance.randint(1, 100) for _ in range(count)]
    ready = sorted(chance.uniform(0, FORWARD_S) for _ in range(count))
    options = {
        i: RecomputeOption(chance.random(), tuple(chance.sample(range(i), min(i, chance.randint(0, 2)))))
        for i in range(count)
        if chance.random() < 0.6
    }
    step = Step(
        [ActivationProfile(size, chance.random(), 1.0, at) for size, at in zip(sizes, ready, strict=True)],
        FORWARD_S,
        BACKWARD_S,
        sorted((chance.uniform(0, BACKWARD_S), i) for i in range(count)),
        [chance.random() for _ in range(count)],
        options,
        window=100,
    )
    return step, chance.randint(1, sum(sizes))


def test_search_is_mostly_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "EXACT", 0)  # search, although they are small
    chance, excesses = random.Random(0), []
    for _ in range(40):
        step, need = drawn(chance, 7)
        least = min(step.seconds(*way) for way in ways(step, need))
        excesses.append(joint(step, need).seconds / least - 1)
    assert sum(excess < 1e-9 for excess in excesses) >= 36
    assert max(excesses) < 0.12


def network(blocks: int, limit: float) -> tuple[Step, int]:
    """Blocks that save a dear and a cheap activation each; moving half of the bytes takes as long as forward."""
    count = 2 * blocks
    seconds = FORWARD_S / blocks
    step = Step(
        [ActivationProfile(100, seconds, 1.0, (i + 1) * FORWARD_S / count) for i in range(count)],
        FORWARD_S,
        BACKWARD_S,
        [(BACKWARD_S * (count - 1 - i) / count, i) for i in reversed(range(count))],
        [seconds] * count,
        {i: RecomputeOption(0.02 * seconds if i % 2 else seconds, (i - 1,) if i else ()) for i in range(count)},
        window=200,
    )
    return step, round(100 * count * (1 - limit))


def test_cheap_activations_are_recomputed_and_dear_ones_move() -> None:
    step, need = network(blocks=12, limit=0.1)
    choice = joint(step, need)
    assert all(i % 2 for i in choice.recomputed)
    assert len(choice.recomputed) >= 9  # and the last ones are still in the window when backward begins
    assert len([i for i in choice.moved if i % 2 == 0]) >= 10
    moving = step.seconds(optimal(step.activations, need, FORWARD_S), ())
    nothing_moves = replace(step, activations=[replace(one, transfer_s=1e3) for one in step.activations], window=0)
    recomputing = joint(nothing_moves, need)
    assert not recomputing.moved
    assert choice.seconds < 0.9 * min(moving, recomputing.seconds)
    assert choice == joint(step, need)


def test_nothing_leaves_if_everything_fits() -> None:
    step, _ = network(blocks=2, limit=1)
    assert joint(step, 0) == Choice((), (), FORWARD_S + BACKWARD_S)


def chain(memory: float, window: float = 0) -> Step:
    """Three activations of 4 bytes, each made from the one before; backward needs them from the last to the first."""
    return Step(
        [ActivationProfile(4, 0.5, 1.0, at) for at in (0.1, 0.2, 0.3)],
        FORWARD_S,
        BACKWARD_S,
        [(0.5, 2), (1.0, 1), (1.5, 0)],
        [0.1] * 3,
        {1: RecomputeOption(0.1, (0,)), 2: RecomputeOption(0.2, (1,))},
        window=window,
        memory=memory,
    )


def test_what_was_recomputed_on_the_way_stays_for_its_use_if_memory_allows() -> None:
    assert chain(memory=12).seconds((), (1, 2)) == pytest.approx(3.3)
    assert chain(memory=8).seconds((), (1, 2)) == math.inf  # the last one is made from the one before
    assert chain(memory=8).seconds((), (1,)) == pytest.approx(3.1)


def test_what_must_give_way_is_recomputed_again() -> None:
    step = chain(memory=12)
    large = ActivationProfile(8, 0.0, 1.0, 0.4)
    step = replace(step, activations=[*step.activations, large], read_s=[0.1] * 4, uses=[*step.uses, (1.6, 3)])
    assert step.seconds((3,), (1, 2)) == pytest.approx(3.4)  # what a recomputation takes is never read into
    step = replace(step, uses=[(0.5, 2), (0.7, 3), (1.0, 1), (1.5, 0)])
    assert step.seconds((3,), (1, 2)) == pytest.approx(3.5)  # it drops the first one, and compute waits for it


def test_what_moved_last_is_still_in_the_window_and_not_read() -> None:
    step = replace(chain(math.inf, window=4), read_s=[10.0] * 3)
    both, last = step.timeline((1, 2), ()), step.timeline((2,), ())
    assert both is not None
    assert last is not None
    assert [read.activation for read in both.reads] == [1]
    assert last.reads == ()
    assert last.iteration_s == pytest.approx(FORWARD_S + BACKWARD_S)


def test_forward_waits_for_writes_only_when_the_window_is_full() -> None:
    writes = [(0, 0.1, pytest.approx(0.6)), (1, pytest.approx(0.6), pytest.approx(1.1))]
    assert chain(math.inf, window=8).forward((0, 1)) == (1.0, pytest.approx(0.1), [0, 1], writes)
    assert chain(math.inf, window=8).forward((0, 1, 2))[:3] == (pytest.approx(1.3), pytest.approx(0.3), [1, 2])
    assert chain(math.inf, window=4).forward((0, 1))[0] == pytest.approx(1.4)
