"""The tuner, on SYNTHETIC calls (see replay.py) and RECORDED ones (data/). What must hold of any is a property."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastio.dicts.context import Context, small_class
from fastio.dicts.json_form import parse_tuners, plain_tuners
from fastio.dicts.priors import NOTHING, Prior, Rule, rule_for
from fastio.dicts.shipped import shipped_rules
from fastio.dicts.sizes import BUCKETS, bucket_nbytes, bucket_of
from fastio.dicts.tuner import Tuner
from fastio_bench.tools import replaying, replays, trace
from fastio_bench.tools.replaying import expected_over_oracle, share_best, slowed, timed
from replay import (
    BANDWIDTH,
    MACHINES,
    SIZES,
    TOOLS,
    made_up,
    prior_from,
    replay,
)

MIB = 1 << 20
TRACES = sorted((Path(__file__).parents[1] / "data").glob("*.csv"))
NOISES = (0.10, 0.05, 0.15)
WRONG = {name: MACHINES["parallel" if name == "reversed" else "reversed"] for name in MACHINES}
RULES = {
    "none": lambda name: NOTHING,
    "right": lambda name: prior_from(MACHINES[name]),
    "wrong": lambda name: prior_from(WRONG[name]),
}


@pytest.mark.parametrize("noises", [NOISES[:1], pytest.param(NOISES, marks=pytest.mark.nightly)], ids=["one", "all"])
@pytest.mark.parametrize(
    ("prior", "most", "worst"), [("none", 1.04, 1.30), ("right", 1.02, 1.15), ("wrong", 1.10, 1.35)]
)
def test_1000_calls_take_little_more_than_the_oracles(
    prior: str, most: float, worst: float, noises: tuple[float, ...]
) -> None:
    """Exploring included."""
    totals = []
    for name, (kind, make), noise in itertools.product(MACHINES, SIZES.items(), noises):
        seed = 50 + len(kind)
        rule = RULES[prior](name)
        run = replay(MACHINES[name], make(random.Random(seed), 1000), noise=noise, seed=seed, rule=rule)
        totals.append(expected_over_oracle(run))
    assert mean(totals) <= most
    assert max(totals) <= worst


# What is reached: total time over the oracle's, by what is known at the start. The goal is 1.03.
REACHED = {"what ships": 1.03, "nothing": 1.04}
# Total from 50 calls after one tool became three times slower. The tool is looked at again for 2 % of the time.
REACHED_SLOWER = {"saves": 1.07, "loads": 1.20, "recorded": 1.05}


# The number of orders that recorded calls are replayed in.
orders = pytest.mark.parametrize("orders", [2, pytest.param(replays.ORDERS, marks=pytest.mark.nightly)])


@orders
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
@pytest.mark.parametrize("start", ["what ships", "nothing"])
def test_recorded_calls_of_real_tools_take_little_more_than_the_oracles(path: Path, start: str, orders: int) -> None:
    reached = replays.replays(trace.read(path), shipped_rules() if start == "what ships" else [], orders)[-1]
    assert reached.total <= REACHED[start]


@orders
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_recorded_tool_three_times_slower_is_left_within_50_calls(path: Path, orders: int) -> None:
    found = replays.recoveries(trace.read(path), shipped_rules(), orders)
    assert mean(recovered.after for recovered in found) <= REACHED_SLOWER[path.stem]


@orders
@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_a_recorded_tool_that_is_as_fast_as_before_again_is_used_again(path: Path, orders: int) -> None:
    """From 50 calls on. It is looked at again for 1 % of the time. Without that the total is 1.37."""
    after = []
    for work, rows in trace.by_work(trace.read(path)).items():
        calls, rule = timed(rows), rule_for(shipped_rules(), trace.context(work, 1))
        tool = max(
            calls[0].seconds, key=lambda tool: sum(min(c.expected, key=c.expected.__getitem__) == tool for c in calls)
        )
        third = len(calls) // 3
        for order in range(orders):
            usual = replays.ordered(calls, order)
            changed = [*usual[:third], *slowed(usual[third : 2 * third], tool, 3.0, 0), *usual[2 * third :]]
            after.append(expected_over_oracle(replaying.replay(changed, Tuner(rule))[2 * third + 50 :]))
    assert mean(after) <= 1.08


def known(posix: float, nbytes: int) -> Tuner:
    """A tuner that measured uring to take one second, posix so many."""
    tuner, rng = Tuner(), random.Random(7)
    for tool, seconds in (("uring", 1.0), ("posix", posix)) * 12:
        tuner.observe(nbytes, tool, seconds * math.exp(rng.gauss(0, 0.05)))
    return tuner


@pytest.mark.parametrize("candidates", [("uring", "posix"), ("posix", "uring")])
def test_of_tools_equal_in_time_the_first_moves_what_is_large(candidates: tuple[str, str]) -> None:
    tuner = known(0.995, 64 * MIB)
    choice, ranked = tuner.explain(64 * MIB, candidates)
    assert ranked[0].tool == choice.tool == candidates[0]
    assert not choice.exploring
    other = max(ranked, key=lambda estimate: estimate.mean)
    if other.tool == candidates[0]:  # it is not the fastest
        assert "equal in time" in choice.reason
        assert f"{candidates[0]} takes less CPU" in choice.reason
    times = tuner.times(64 * MIB, candidates)
    assert list(times.values()) == sorted(times.values())


def test_times_follow_a_slow_change_that_no_choice_is_made_in() -> None:
    tuner, tools = known(0.9, MIB), ("uring", "posix")
    assert tuner.choose(MIB, tools).tool == "posix"
    for call in range(1200):
        tuner.observe(MIB, "posix", 0.9 * (1 + min(call, 600) / 300))
    assert tuner.times(MIB, tools)["posix"] == pytest.approx(2.7, rel=0.05)


def test_times_name_a_tool_as_soon_as_it_is_measured() -> None:
    tuner = Tuner(Rule({}, Prior([(bucket_of(MIB), {"a": (0.0, 0.3), "b": (1.0, 0.3)})]), {}))
    for tool in ("b", "a"):
        tuner.choose(MIB, ("a", "b"))
        assert tool not in tuner.times(MIB, ("a", "b"))
        seconds = tuner.explain(MIB, ("a", "b"))[1][0].seconds(bucket_of(MIB)) if tool == "a" else 0.01
        tuner.observe(MIB, tool, seconds)  # for "a" just what is expected
        assert tool in tuner.times(MIB, ("a", "b"))


def test_a_huge_transfer_gives_away_a_little_time_for_the_processor() -> None:
    for nbytes, tool in ((64 * MIB, "posix"), (512 * MIB, "uring")):
        choice, ranked = known(0.92, nbytes).explain(nbytes, ("uring", "posix"))
        assert choice.tool == ranked[0].tool == tool


@pytest.mark.parametrize(("posix", "nbytes"), [(0.85, 64 * MIB), (0.85, 512 * MIB), (0.985, MIB)])
def test_the_fastest_is_used_where_it_is_faster_or_the_transfer_small(posix: float, nbytes: int) -> None:
    choice, ranked = known(posix, nbytes).explain(nbytes, ("uring", "posix"))
    assert choice.tool == ranked[0].tool == "posix"


def test_large_transfers_pay_for_tries_before_they_are_made() -> None:
    """A program may load a few large files and end."""
    rule = prior_from({"posix": MACHINES["parallel"]["posix"]})
    tuner, tools, tried = Tuner(rule), ("posix", "uring"), []
    for call in range(2000):
        choice = tuner.choose(400 * MIB, tools)
        tuner.observe(400 * MIB, choice.tool, 0.2 if choice.tool == "posix" else 0.5)
        tried += [call] if choice.tool == "uring" else []
    assert tried
    assert tried[0] >= 8


@pytest.mark.parametrize("slower", [10.0, 100.0])
def test_tries_of_a_far_slower_tool_stay_within_the_budget(slower: float) -> None:
    tuner, spent, tries = Tuner(), 0.0, 0
    for call in range(2000):
        choice = tuner.choose(64 * MIB, ("good", "bad"))
        seconds = slower if choice.tool == "bad" else 1.0
        tries += choice.tool == "bad"
        spent += seconds - 1.0
        tuner.observe(64 * MIB, choice.tool, seconds, first=call == 0 or (choice.tool == "bad" and tries == 1))
    assert tries >= 2  # the first is warm-up, the next one counts
    assert spent <= 2 * slower + 0.02 * 2000


@pytest.mark.parametrize("kind", SIZES)
@pytest.mark.parametrize(("name", "incumbent"), [("parallel", "uring"), ("reversed", "torch")])
def test_an_incumbent_three_times_slower_is_left_within_50_calls(kind: str, name: str, incumbent: str) -> None:
    before, after = [], []
    for seed in range(6):
        sizes = SIZES[kind](random.Random(seed), 700)
        calls = replay(
            MACHINES[name],
            sizes,
            seed=seed,
            slower=lambda call, tool: 3.0 if call >= 500 and tool == incumbent else 1.0,
        )
        before.append(expected_over_oracle(calls[400:500]))
        after.append(expected_over_oracle(calls[550:]))
    assert mean(before) <= 1.06
    assert sorted(after)[len(after) // 2] <= 1.07  # staying with it costs 1.15 to 2.6


def test_a_runner_up_that_becomes_faster_is_noticed() -> None:
    for seed in range(6):
        calls = replay(
            MACHINES["parallel"],
            [64 * MIB] * 1300,
            seed=seed,
            slower=lambda call, tool: 1 / 3 if call >= 500 and tool == "posix" else 1.0,
        )
        assert share_best(calls[1100:]) > 0.9


def test_a_creeping_change_is_noticed_though_no_call_is_a_surprise() -> None:
    late = []
    for seed in range(6):
        sizes = SIZES["1 to 128 MiB"](random.Random(seed), 900)
        calls = replay(
            MACHINES["parallel"],
            sizes,
            seed=seed,
            slower=lambda call, tool: 1.0 + 0.6 * min(max((call - 400) / 100, 0), 1) if tool == "uring" else 1.0,
        )
        late.append(expected_over_oracle(calls[600:]))
    assert mean(late) <= 1.06  # staying with it would cost 1.39


def test_a_change_of_all_tools_leaves_the_best_one_in_place() -> None:
    calls = replay(MACHINES["parallel"], [64 * MIB] * 800, slower=lambda call, tool: 3.0 if call >= 500 else 1.0)
    assert share_best(calls[560:]) > 0.9


def test_a_busy_spell_of_the_machine_is_blamed_on_no_tool() -> None:
    """The best one is used again as soon as it is over: in each spell all tools take six times longer."""
    totals = []
    for seed in range(20):
        starts = range(100, 800, 100)

        def slower(call: int, tool: str, starts: range = starts) -> float:
            return 6.0 if any(start <= call < start + 12 for start in starts) else 1.0

        sizes = SIZES["1 to 128 MiB"](random.Random(seed), 800)
        calls = replay(MACHINES["parallel"], sizes, seed=seed, slower=slower, rule=prior_from(MACHINES["parallel"]))
        after = [call for start in starts for call in calls[start + 12 : start + 42]]
        totals.append(expected_over_oracle(after))
    assert mean(totals) <= 1.08  # with the second best tool it is 1.15


@pytest.mark.parametrize("alone", [True, False])
def test_times_learned_in_a_busy_spell_are_corrected_within_processes_of_a_few_calls(alone: bool) -> None:
    """In the spell, the best tool or all tools took 4.5 times as long. From 100 calls after it on."""
    rule, after = prior_from(MACHINES["parallel"]), []
    context = Context("load", "pt", "cpu", resident=True)
    for seed in range(6):
        sizes = SIZES["1 to 128 MiB"](random.Random(seed), 600)
        calls = made_up(
            MACHINES["parallel"],
            sizes,
            seed=seed,
            slower=lambda call, tool: 4.5 if call < 200 and (tool == "uring" or not alone) else 1.0,
        )
        tuner, done = Tuner(rule), []
        for start in range(0, 600, 20):
            (tuner,) = parse_tuners(plain_tuners({context: tuner})).values() if start else (tuner,)
            tuner.adopt(rule)
            done += replaying.replay(calls[start : start + 20], tuner)
        after.append(expected_over_oracle(done[300:]))
    assert mean(after) <= 1.1, after


def test_a_short_process_with_a_prior_tries_nothing_at_its_first_large_loads() -> None:
    """Four processes of three loads each: a try of a tool that may be 10 % slower would take more than 3 %."""
    rule = Rule({}, Prior([(0, {"pinned": (0.0, 0.2), "gds": (0.1, 0.4), "torch": (0.3, 0.2)})]), {})
    context, tuner = Context("load", "safetensors", "cuda", resident=False), Tuner(rule)
    for process in range(4):
        (tuner,) = parse_tuners(plain_tuners({context: tuner})).values() if process else (tuner,)
        tuner.adopt(rule)
        for call in range(3):
            choice = tuner.choose(1 << 30, ("gds", "pinned", "torch"), first=call == 0)
            assert (choice.tool, choice.exploring) == ("pinned", False)
            tuner.observe(1 << 30, choice.tool, 0.55, first=call == 0)


def test_a_machine_that_is_slower_for_good_is_taken_as_it_is_and_as_it_was_again() -> None:
    slower = [1.0] * 300 + [3.0] * 300 + [1.0] * 300
    for seed in range(10):
        sizes = SIZES["1 to 128 MiB"](random.Random(seed), 900)
        calls = replay(MACHINES["parallel"], sizes, seed=seed, slower=lambda call, tool: slower[call])
        assert expected_over_oracle(calls[350:600]) <= 1.1, seed
        assert expected_over_oracle(calls[650:]) <= 1.1, seed


def test_stalls_of_the_machine_are_no_new_speed_of_the_tool_that_met_them() -> None:
    """Memory that a host must find again takes 10 ms where a call takes one, several times in a row."""
    tuner, times = Tuner(), {"a": 1.0e-3, "b": 1.2e-3}
    chance, tools, stalls = random.Random(1), [], 0
    for call in range(500):
        tool = tuner.choose(4 * MIB, tuple(times)).tool
        stalled = call >= 150 and tool == "a" and stalls < 2
        stalls += stalled
        tools.append(tool)
        longer = (40, 12)[stalls - 1] if stalled else 1
        tuner.observe(4 * MIB, tool, times[tool] * chance.gauss(1, 0.05) * longer)
    assert stalls == 2
    assert tools[120:150].count("a") >= 27
    assert tools[-100:].count("a") >= 90


def test_a_stall_in_a_first_try_does_not_take_all_that_may_be_spent_on_trying() -> None:
    """The prior calls b slower; it is faster, and its first call met a stall."""
    rule = Rule({}, Prior([(0, {"a": (0.0, 0.1), "b": (0.3, 0.1)})]), {})
    tuner, times = Tuner(rule), {"a": 1.0e-3, "b": 0.8e-3}
    tools: list[str] = []
    for call in range(300):
        nbytes = (16 * 1024, 4 * MIB)[call % 2]
        tool = tuner.choose(nbytes, ("a", "b")).tool
        first = tool not in tools
        tools.append(tool)
        took = times[tool] * (0.1 if call % 2 == 0 else 1)
        tuner.observe(nbytes, tool, took * (12 if first and tool == "b" else 1), first=first)
    assert tools[150:].count("b") >= 140


def test_a_tool_that_was_met_in_a_busy_spell_only_is_looked_at_again_soon() -> None:
    """The prior calls it the fastest, its two first times the slowest. Where many times agree, they are believed."""
    rule = Rule({}, Prior([(bucket_of(64 * MIB), {"good": (0.0, 0.3), "other": (1.0, 0.3)})]), {})
    tuner = Tuner(rule)
    for tool, seconds, calls in (("other", 0.6, 5), ("good", 1.3, 2)):
        for _ in range(calls):
            tuner.observe(64 * MIB, tool, seconds)
    times = {"good": 0.2, "other": 0.6}
    tools = []
    for _ in range(100):
        tools.append(tuner.choose(64 * MIB, ("good", "other")).tool)
        tuner.observe(64 * MIB, tools[-1], times[tools[-1]])
    assert tools.index("good") <= 60
    assert tools[-30:].count("good") >= 29


def test_a_clearly_worse_tool_is_dropped_after_a_few_calls() -> None:
    machine = {"fast": (0.0, 1e-9), "slow": (0.0, 8e-9)}
    calls = replay(machine, [16 * MIB] * 300)
    assert sum(call.tool == "slow" for call in calls) <= 6


def test_every_tool_is_tried_though_the_prior_is_wrong() -> None:
    calls = replay(MACHINES["reversed"], [64 * MIB] * 400, rule=prior_from(MACHINES["parallel"], lambda _: 0.1))
    assert {call.tool for call in calls[:200]} == set(TOOLS)  # the best, thought twice as slow, late: calls this large
    assert share_best(calls[200:]) > 0.9  # are not spent on what is unlikely


def test_a_new_tool_joins_by_itself() -> None:
    tuner = Tuner()
    for _ in range(100):
        choice = tuner.choose(MIB, ("a", "b"))
        tuner.observe(MIB, choice.tool, {"a": 1.0, "b": 2.0}[choice.tool])
    tools = []
    for _ in range(60):
        choice = tuner.choose(MIB, ("a", "b", "plug-in"))
        tools.append(choice.tool)
        tuner.observe(
            MIB, choice.tool, {"a": 1.0, "b": 2.0, "plug-in": 0.5}[choice.tool], first="plug-in" not in tools[:-1]
        )
    assert tools[-30:].count("plug-in") >= 28


def test_a_first_call_counts_only_while_nothing_better_is_known() -> None:
    tuner = Tuner()
    tuner.observe(MIB, "a", 5.0, first=True)
    assert tuner.choose(MIB, ("a",)).tool == "a"
    _, (estimate,) = tuner.explain(MIB, ("a",))
    assert estimate.source == "first calls"
    assert 3.0 < estimate.seconds(bucket_of(MIB)) < 5.0  # a first call is expected to take longer than later ones
    for _ in range(3):
        tuner.observe(MIB, "a", 0.1)
    _, (estimate,) = tuner.explain(MIB, ("a",))
    assert estimate.seconds(bucket_of(MIB)) == pytest.approx(0.1, rel=0.2)


def test_an_unseen_size_takes_what_its_neighbours_know() -> None:
    tuner = Tuner()
    for nbytes in (MIB, 4 * MIB):
        for _, tool in itertools.product(range(8), TOOLS):
            tuner.observe(nbytes, tool, nbytes * {"torch": 1e-9}.get(tool, 3e-9))
    choice = tuner.choose(2 * MIB, TOOLS)
    assert (choice.tool, choice.exploring) == ("torch", False)
    assert "sizes around" in choice.reason
    assert tuner.choose(1 << 40, TOOLS).order  # out of reach of all that is known: an answer, never an error


MIDDLE = bucket_of(12 * MIB)


def around(tuner: Tuner, tool: str, relative: float, buckets: Iterable[int], calls: int = 5) -> None:
    """Have the tool take so much, with a little noise, at each bucket that is so far from the middle."""
    rng = random.Random(tool)
    for distance, _ in itertools.product(buckets, range(calls)):
        nbytes = bucket_nbytes(MIDDLE + distance)
        tuner.observe(nbytes, tool, relative * (1e-3 + nbytes / BANDWIDTH) * math.exp(rng.gauss(0, 0.05)))


def believed(tuner: Tuner, tool: str, distance: int) -> float:
    """What the tool is believed to take at a bucket, over what it takes elsewhere."""
    bucket = MIDDLE + distance
    estimate = next(e for e in tuner.explain(bucket_nbytes(bucket), ("posix", "uring"))[1] if e.tool == tool)
    return estimate.seconds(bucket) / (1e-3 + bucket_nbytes(bucket) / BANDWIDTH)


@pytest.mark.parametrize("factor", [0.3, 3.0])
def test_a_step_in_the_curve_of_a_tool_is_seen_from_both_sides(factor: float) -> None:
    tuner = Tuner()
    rng = random.Random(1)
    for _ in range(6):
        for distance in rng.sample(range(-16, 17, 2), 17):
            around(tuner, "uring", 2.0, [distance], calls=1)
            around(tuner, "posix", 1.0 if distance < 0 else factor, [distance], calls=1)
    for distance in (-12, -8, 8, 12):
        expected = 1.0 if distance < 0 else factor
        assert believed(tuner, "posix", distance) == pytest.approx(expected, rel=0.25), distance


def test_one_bad_sample_does_not_keep_a_tool_away() -> None:
    for bad in (2.5, 5.0, 20.0):
        tuner = Tuner()
        around(tuner, "posix", 1.0, [*range(-16, 0, 4), *range(4, 17, 4)])
        around(tuner, "uring", 1.3, range(-16, 17, 4))
        nbytes = bucket_nbytes(MIDDLE)
        tuner.observe(nbytes, "posix", bad * (1e-3 + nbytes / BANDWIDTH))
        tools = []
        for _ in range(12):
            tools.append(tuner.choose(nbytes, ("posix", "uring")).tool)
            tuner.observe(nbytes, tools[-1], {"posix": 1.0, "uring": 1.3}[tools[-1]] * (1e-3 + nbytes / BANDWIDTH))
        assert tools[-8:].count("posix") == 8, (bad, tools)


def test_a_prior_is_overridden_by_measurement() -> None:
    rule = Rule({}, Prior([(0, {"a": (0.0, 0.3), "b": (math.log(3), 0.3)})]), {})
    tuner = Tuner(rule)
    first = tuner.choose(MIB, ("b", "a"))
    assert (first.tool, first.exploring) == ("a", False)
    assert "the priors put" in first.reason
    for _ in range(6):
        tuner.observe(MIB, "a", 2.0)
        tuner.observe(MIB, "b", 1.0)
    assert tuner.choose(MIB, ("b", "a")).tool == "b"


def test_a_tool_that_fails_is_avoided_and_tried_again_much_later() -> None:
    tuner = Tuner()
    fails, uses = [], []
    for call in range(6000):
        choice = tuner.choose(MIB, ("good", "broken"))
        assert set(choice.order) == {"good", "broken"}
        assert choice.order[0] == choice.tool
        if choice.tool == "broken":
            tuner.fail("broken", "refused")
            fails.append(call)
        else:
            tuner.observe(MIB, "good", 1.0)
            uses.append(call)
    gaps = [b - a for a, b in itertools.pairwise(fails)]
    assert 2 <= len(fails) <= 6
    assert min(gaps) >= 256
    assert gaps == sorted(gaps)
    assert tuner.records["broken"].failure is not None
    assert tuner.records["broken"].failure.reason == "refused"


def test_when_all_tools_fail_one_is_still_chosen() -> None:
    tuner = Tuner()
    for tool in TOOLS:
        tuner.fail(tool, "no")
    assert set(tuner.choose(MIB, TOOLS).order) == set(TOOLS)


def test_only_one_caller_at_a_time_tries_a_tool() -> None:
    tuner = Tuner(Rule({}, Prior([(0, {"a": (0.0, 0.3), "b": (0.1, 0.3)})]), {}))
    tuner.observe(MIB, "a", 1.0)
    tuner.observe(MIB, "a", 1.0)
    tools = [tuner.choose(MIB, ("a", "b")).tool for _ in range(8)]  # eight threads, none of which is done yet
    assert tools.count("b") <= 1


def test_renewal_measures_all_tools_again() -> None:
    tuner = Tuner()
    times = {"a": 1.0, "b": 1.5}
    for _ in range(200):
        tool = tuner.choose(MIB, ("a", "b")).tool
        tuner.observe(MIB, tool, times[tool])
    tuner.renew()
    times = {"a": 1.0, "b": 0.8}
    tools = []
    for _ in range(40):
        tools.append(tuner.choose(MIB, ("a", "b")).tool)
        tuner.observe(MIB, tools[-1], times[tools[-1]])
    assert "b" in tools[:4]
    assert tools[-10:].count("b") >= 9


def test_the_same_calls_give_the_same_choices() -> None:
    sizes = SIZES["4 KiB to 1 GiB"](random.Random(3), 300)
    assert replay(MACHINES["crossing"], sizes, seed=3) == replay(MACHINES["crossing"], sizes, seed=3)


@given(st.integers(0, 1 << 62))
def test_a_bucket_is_a_quarter_of_an_octave(nbytes: int) -> None:
    bucket = bucket_of(nbytes)
    assert 0 <= bucket <= BUCKETS - 1
    assert bucket_of(bucket_nbytes(bucket)) == bucket
    assert bucket_of(nbytes + 1) >= bucket
    if 304 < nbytes < 1 << 50:
        assert 2**-0.13 < nbytes / bucket_nbytes(bucket) < 2**0.13


@given(st.integers(0, 1 << 50), st.integers(0, 1 << 20))
def test_small_classes(nbytes: int, extents: int) -> None:
    small = small_class(nbytes, extents)
    assert small in (0, 1, 2, 3)
    assert small == 0 or extents > 8
    assert small_class(nbytes * 2, extents) <= small


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["use", "use", "use", "first", "fail", "renew", "abandon"]),
        st.integers(0, 1 << 40),
        st.floats(allow_nan=True, allow_infinity=True),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
    ),
    max_size=60,
)


@given(STEPS)
def test_nothing_that_happens_breaks_a_tuner(steps: list[tuple[str, int, float, list[str]]]) -> None:
    tuner = Tuner()
    for what, nbytes, seconds, candidates in steps:
        choice = tuner.choose(nbytes, tuple(candidates))
        assert choice.tool == choice.order[0]
        assert sorted(choice.order) == sorted(candidates)
        assert choice.reason
        if what == "fail":
            tuner.fail(choice.tool, "why not")
        elif what == "renew":
            tuner.renew()
        elif what != "abandon":
            tuner.observe(nbytes, choice.tool, seconds, first=what == "first")
        for estimate in tuner.explain(nbytes, tuple(candidates))[1]:
            assert math.isfinite(estimate.mean)
            assert 0 < estimate.deviation < math.inf


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(1.0, 4.0), min_size=2),
    st.integers(1 << 10, 1 << 30),
    st.integers(0, 100),
)
def test_without_noise_the_fastest_tool_wins(times: dict[str, float], nbytes: int, seed: int) -> None:
    machine = {tool: (seconds, 0.0) for tool, seconds in times.items()}
    calls = replay(machine, [nbytes] * 120, noise=0.0, outliers=0.0, seed=seed)
    # Equal are 8 %, and 12 % for huge transfers; what may gain less than 10 % is not tried.
    assert share_best([call for call in calls[60:] if not call.exploring], tie=math.exp(0.15)) == 1.0


def test_stored_times_of_a_busy_spell_give_way_to_faster_first_calls() -> None:
    nbytes, tuner = 140 << 20, Tuner()
    for _ in range(5):
        tuner.observe(nbytes, "two threads", 0.025)  # the other processor was busy
        tuner.observe(nbytes, "one thread", 0.017)
    for _ in range(5):  # processes later
        tuner.observe(nbytes, "two threads", 0.015, first=True)
    tuner.adopt(NOTHING)  # learns the stored times as a new process does
    assert tuner.choose(nbytes, ["one thread", "two threads"]).tool == "two threads"
