"""WDic, RDic, WRDic and ``policy``: what they answer, by context and size, from many threads, in every mode."""

from __future__ import annotations

import math
import pickle
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from fastio import dicts
from fastio.dicts import Context, Dictionary, RDic, WDic, WRDic, resolve
from fastio.errors import DictionaryError

MIB = 1 << 20
TOOLS = ("uring", "posix", "torch")
SAVE = Context("save", "pt", "cpu", durable=True)
LOAD = Context("load", "pt", "cpu", resident=False)


def fill(dictionary: Dictionary, context: Context, times: dict[str, float], nbytes: int = MIB, calls: int = 6) -> None:
    for _ in range(calls):
        for tool, seconds in times.items():
            dictionary.observe(context, nbytes, tool, seconds)


@pytest.mark.parametrize("other", [
    Context("load", "pt", "cpu", resident=True),
    Context("load", "pt", "cuda", resident=False),
    Context("load", "npy", "cpu", resident=False),
    Context("load", "pt", "cpu", resident=False, small=3),
    Context("save", "pt", "cpu", durable=False),
])  # fmt: skip
def test_each_context_has_its_own_best_tool(other: Context) -> None:
    dictionary = Dictionary(rules=())
    fill(dictionary, LOAD, {"uring": 1.0, "posix": 2.0, "torch": 3.0})
    fill(dictionary, other, {"uring": 3.0, "posix": 2.0, "torch": 1.0})
    assert dictionary.choose(LOAD, MIB, TOOLS).order == ("uring", "posix", "torch")
    assert dictionary.choose(other, MIB, TOOLS).order == ("torch", "posix", "uring")


def test_sizes_have_their_own_best_tool() -> None:
    dictionary = WDic(rules=())
    for nbytes in (1 << 12, 1 << 14, 1 << 16):
        fill(dictionary, SAVE, {"uring": 3e-4, "posix": 1e-4, "torch": 2e-4}, nbytes)
    for nbytes in (1 << 26, 1 << 28):
        fill(dictionary, SAVE, {"uring": nbytes / 3e9, "posix": nbytes / 2e9, "torch": nbytes / 1e9}, nbytes)
    assert dictionary.explain(SAVE, 1 << 13, TOOLS).entries[0].tool == "posix"
    assert dictionary.explain(SAVE, 1 << 27, TOOLS).entries[0].tool == "uring"


def test_an_explanation_is_not_certain_among_tools_that_were_not_tried() -> None:
    """Whatever was measured of one tool: of the others only priors are known."""
    tools, nbytes = ("uring", "numpy", "posix"), 64 * MIB
    dictionary = RDic()
    assert "; none of them was tried here yet" in str(dictionary.explain(LOAD, nbytes, tools))
    fill(dictionary, LOAD, {"numpy": 0.02}, nbytes, 12)
    said = str(dictionary.explain(LOAD, nbytes, tools))
    assert "not tried here yet: " in said
    assert "is the fastest" not in said
    fill(dictionary, LOAD, {"uring": 0.01}, nbytes, 12)
    said = str(dictionary.explain(LOAD, nbytes, tools))
    assert "uring is expected to be the fastest, by a chance of " in said
    assert "; not tried here yet: posix\n" in said
    fill(dictionary, LOAD, {"posix": 0.03}, nbytes, 12)
    said = str(dictionary.explain(LOAD, nbytes, tools))
    assert "uring is the fastest, by a chance of " in said
    assert "uring was the fastest" in said
    only = Dictionary(rules=())
    fill(only, LOAD, {"uring": 0.01}, nbytes, 40)
    reason = only.explain(LOAD, nbytes, ("uring",)).reason
    assert reason == "uring is the only tool that can be used"


@pytest.mark.parametrize("turn", [1, 2])
def test_no_test_knows_what_an_earlier_one_measured(turn: int, tmp_path: Path) -> None:
    default = dicts.default("save", str(tmp_path))
    assert default.times(SAVE, MIB, TOOLS) == {}, f"turn {turn}"
    fill(default, SAVE, {"uring": 1.0, "posix": 2.0, "torch": 4.0})
    assert dicts.default("save", str(tmp_path)).times(SAVE, MIB, TOOLS).keys() == set(TOOLS)
    dicts.flush()


def test_a_fresh_dictionary_answers_by_what_ships() -> None:
    choice = WDic().choose(SAVE, 784 * MIB, ("torch", "numpy", "posix", "uring"))
    assert choice.tool == "uring"
    assert "the priors put" in choice.reason
    assert WDic().choose(Context("save", "pt", "cpu", durable=False), 784 * MIB, TOOLS).tool == "posix"
    assert RDic().choose(LOAD, 784 * MIB, TOOLS).tool == "uring"
    assert RDic().choose(Context("load", "pt", "cpu", resident=True), 784 * MIB, TOOLS).tool == "posix"


def test_a_tool_that_nobody_knows_is_no_error() -> None:
    choice = Dictionary().choose(Context("load", "new", "npu"), 0, ["plug-in", "other"])
    assert choice.order == ("plug-in", "other")
    with pytest.raises(ValueError, match="empty"):
        Dictionary().choose(LOAD, 1, [])


def test_the_first_call_in_a_process_is_warm_up() -> None:
    dictionary = Dictionary(rules=())
    dictionary.observe(SAVE, MIB, "posix", 9.0)
    for _ in range(4):
        dictionary.observe(SAVE, MIB, "posix", 0.01)
    assert dictionary.times(SAVE, MIB, ["posix"])["posix"] == pytest.approx(0.01, rel=0.05)


def test_processes_of_one_call_go_by_what_tools_took_as_first_calls() -> None:
    later, first = {"posix": 4.5, "uring": 5.4, "torch": 10.0}, {"posix": 11.0, "uring": 6.2, "torch": 11.0}
    for seed in range(8):
        chance = random.Random(seed)
        known, called = Dictionary(rules=()), set()
        for _ in range(60):
            tool = known.choose(LOAD, 12 * MIB, TOOLS).tool
            usual = later if tool in called else first
            known.observe(LOAD, 12 * MIB, tool, usual[tool] * 1e-3 * chance.lognormvariate(0, 0.1))
            called.add(tool)
        assert known.explain(LOAD, 12 * MIB, TOOLS).entries[0].tool == "posix"
        choices = []
        for _ in range(40):  # processes, each of which knows what those before it kept
            known = pickle.loads(pickle.dumps(known))
            choices.append(known.choose(LOAD, 12 * MIB, TOOLS))
            took = first[choices[-1].tool] * 1e-3 * chance.lognormvariate(0, 0.2)
            known.observe(LOAD, 12 * MIB, choices[-1].tool, took)
        tools = [choice.tool for choice in choices]
        assert tools.count("uring") >= 32, (seed, tools)
        assert tools[-20:].count("uring") >= 18, (seed, tools)
        assert any("as a process's first call" in choice.reason for choice in choices)
        again = pickle.loads(pickle.dumps(known))
        assert "as a process's first call" in again.explain(LOAD, 12 * MIB, TOOLS).reason
        again.observe(LOAD, 12 * MIB, "torch", 11e-3)
        assert again.explain(LOAD, 12 * MIB, TOOLS).entries[0].tool == "posix"  # the second call is none any more


def test_wdic_hears_of_saves_only_and_rdic_of_loads_only() -> None:
    wdic, rdic = WDic(rules=()), RDic(rules=())
    for dictionary in (wdic, rdic):
        fill(dictionary, SAVE, {"uring": 1.0, "posix": 2.0})
        fill(dictionary, LOAD, {"uring": 2.0, "posix": 1.0})
    assert wdic.choose(LOAD, MIB, ("posix", "uring")).tool == "uring"
    assert rdic.choose(SAVE, MIB, ("uring", "posix")).tool == "posix"


def test_wrdic_sums_what_both_know_though_nothing_is_known_of_another_tool() -> None:
    """By its time to save alone torch would be the first, which loads three times as slowly as posix."""
    both = WRDic(WDic(rules=()), RDic(rules=()))
    fill(both, SAVE, {"torch": 1.0, "posix": 1.2})
    fill(both, LOAD, {"torch": 3.0, "posix": 1.0})
    for dictionary in (both.wdic, both.rdic):  # of which nothing will be known, nor will it be tried
        for context in (SAVE, LOAD):
            dictionary.fail(context, MIB, "uring", "io_uring_setup: Operation not permitted")
    for context in (SAVE, LOAD):
        choice = both.choose(context, MIB, TOOLS)
        assert choice.order == ("posix", "torch", "uring")
        assert "save and load" in choice.reason
        assert both.explain(context, MIB, TOOLS).tool == "posix"


def test_wrdic_takes_what_its_part_does_where_the_other_part_does_not_know_it() -> None:
    both = WRDic(WDic(rules=()), RDic(rules=()))
    fill(both, SAVE, {"uring": 1.0, "posix": 2.0, "torch": 5.0})
    fill(both, LOAD, {"posix": 1.0, "torch": 3.0})
    assert both.choose(SAVE, MIB, TOOLS).tool == both.explain(SAVE, MIB, TOOLS).tool == "uring"


def test_wrdic_sums_save_and_load_once_both_know_every_tool() -> None:
    both = WRDic(WDic(rules=()), RDic(rules=()))
    fill(both, SAVE, {"uring": 1.0, "posix": 1.2, "torch": 5.0})
    assert both.choose(SAVE, MIB, TOOLS).tool == "uring"
    assert both.times(SAVE, MIB, TOOLS) == {}
    fill(both, LOAD, {"uring": 3.0, "posix": 1.0, "torch": 5.0})
    expected = {"posix": 2.2, "uring": 4.0, "torch": 10.0}
    for context in (SAVE, LOAD):
        assert both.times(context, MIB, TOOLS) == pytest.approx(expected, rel=0.02)
        choice = both.choose(context, MIB, TOOLS)
        assert choice.order == ("posix", "uring", "torch")
        assert "save and load" in choice.reason
        assert both.explain(context, MIB, TOOLS).tool == "posix"


@pytest.mark.parametrize(("mode", "best"), [("w", "uring"), ("r", "torch"), ("w+r", "posix")])
def test_modes(mode: str, best: str) -> None:
    both = WRDic(WDic(rules=()), RDic(rules=()), mode=mode)
    fill(both, SAVE, {"uring": 1.0, "posix": 1.2, "torch": 5.0})
    fill(both, LOAD, {"uring": 5.0, "posix": 1.2, "torch": 1.0})
    assert {both.choose(context, MIB, TOOLS).tool for context in (SAVE, LOAD)} == {best}


def test_a_failure_is_told_and_the_tool_avoided() -> None:
    dictionary = Dictionary(rules=())
    fill(dictionary, SAVE, {"uring": 1.0, "posix": 2.0})
    dictionary.fail(SAVE, MIB, "uring", "io_uring_setup: Operation not permitted")
    assert dictionary.choose(SAVE, 64 * MIB, ("uring", "posix")).order == ("posix", "uring")
    assert "Operation not permitted" in str(dictionary.explain(SAVE, MIB, ("uring", "posix")))
    assert dictionary.choose(LOAD, MIB, ("uring", "posix")).tool == "uring"


def test_an_explanation_says_which_why_how_sure_and_what_the_others_took() -> None:
    dictionary = Dictionary(rules=())
    fill(dictionary, SAVE, {"uring": 0.010, "posix": 0.015})
    explanation = dictionary.explain(SAVE, MIB, TOOLS)
    uring, posix, torch = (next(e for e in explanation.entries if e.tool == tool) for tool in TOOLS)
    assert uring.seconds == pytest.approx(0.010, rel=0.05)
    assert uring.low is not None
    assert uring.high is not None
    assert uring.low < 0.010 < uring.high
    assert posix.relative == pytest.approx(1.5, rel=0.1)
    assert (uring.samples, torch.samples, torch.source) == (5, 0, "unknown")
    assert 0 < explanation.confidence < 1
    text = str(explanation)
    assert "durable" in text
    assert "1 MiB" in text
    assert all(tool in text for tool in TOOLS)


def test_an_explanation_of_what_nobody_knows() -> None:
    explanation = Dictionary(rules=()).explain(LOAD, MIB, TOOLS)
    assert {entry.seconds for entry in explanation.entries} == {None}
    assert "nothing is known" in str(explanation)


@pytest.mark.parametrize("kind", [Dictionary, WRDic])
def test_explaining_changes_no_answer(kind: type[Dictionary]) -> None:
    asked, left = kind(), kind()
    rng = random.Random(1)
    for _ in range(600):
        nbytes, context = int(2 ** rng.uniform(12, 28)), rng.choice((SAVE, LOAD))
        asked.explain(context, nbytes, TOOLS)
        asked.times(context, nbytes, TOOLS)
        choice = asked.choose(context, nbytes, TOOLS)
        assert choice == left.choose(context, nbytes, TOOLS)
        seconds = nbytes / 1e9 * (1 + TOOLS.index(choice.tool)) * math.exp(rng.gauss(0, 0.1))
        for dictionary in (asked, left):
            dictionary.observe(context, nbytes, choice.tool, seconds)


def test_a_dictionary_is_bounded() -> None:
    dictionary = Dictionary(rules=())
    for index in range(300):
        dictionary.observe(Context("save", f"format-{index}", "cpu"), MIB, "posix", 1.0)
        dictionary.observe(SAVE, MIB, f"tool-{index}", 1.0)
    assert len(dictionary.tuners) <= 128
    assert all(len(tuner.records) <= 64 for tuner in dictionary.tuners.values())
    assert dictionary.choose(SAVE, MIB, [f"tool-{index}" for index in range(300)]).order


def test_threads_may_share_a_dictionary() -> None:
    dictionary = Dictionary(rules=())
    errors: list[BaseException] = []

    def use(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(400):
                context, nbytes = rng.choice((SAVE, LOAD)), int(2 ** rng.uniform(10, 30))
                choice = dictionary.choose(context, nbytes, TOOLS)
                if rng.random() < 0.02:
                    dictionary.fail(context, nbytes, choice.tool, "unlucky")
                else:
                    dictionary.observe(context, nbytes, choice.tool, nbytes / 1e9 * (1 + TOOLS.index(choice.tool)))
                dictionary.explain(context, nbytes, TOOLS)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert dictionary.times(SAVE, MIB, TOOLS)


def test_a_dictionary_can_be_sent_to_another_rank() -> None:
    for dictionary in (Dictionary(rules=()), WDic(), WRDic(WDic(), RDic())):
        fill(dictionary, SAVE, {"uring": 2.0, "posix": 1.0})
        fill(dictionary, LOAD, {"uring": 2.0, "posix": 1.0})
        copy = pickle.loads(pickle.dumps(dictionary))
        assert type(copy) is type(dictionary)
        assert copy.times(SAVE, MIB, ("uring", "posix")) == pytest.approx(
            dictionary.times(SAVE, MIB, ("uring", "posix")), rel=0.01
        )


def use(dictionary: Dictionary, calls: int) -> set[str]:
    """Let it choose so many times; the tools it chose. posix takes 1.3 times as long as uring."""
    tools = set()
    for _ in range(calls):
        tool = dictionary.choose(SAVE, MIB, ("uring", "posix")).tool
        dictionary.observe(SAVE, MIB, tool, {"uring": 1.0, "posix": 1.3}[tool])
        tools.add(tool)
    return tools


def test_renewal_by_calls() -> None:
    dictionary = Dictionary(rules=(), renew="1000")
    fill(dictionary, SAVE, {"uring": 1.0, "posix": 1.3}, calls=498)
    assert use(dictionary, 4) == {"uring"}
    assert use(dictionary, 4) == {"uring", "posix"}


def test_renewal_by_seconds() -> None:
    now = 0.0
    dictionary = Dictionary(rules=(), renew="3600s", clock=lambda: now)
    fill(dictionary, SAVE, {"uring": 1.0, "posix": 1.3}, calls=20)
    assert use(dictionary, 8) == {"uring"}
    now = 3601.0
    assert use(dictionary, 4) == {"uring", "posix"}
    use(dictionary, 20)
    assert use(dictionary, 8) == {"uring"}


@pytest.mark.parametrize("text", ["often", "-3", "0", "5m", "1.5s", "s", "٣", 5, None])
def test_renewal_that_makes_no_sense(text: Any) -> None:
    with pytest.raises(ValueError, match="renew="):
        Dictionary(renew=text)


def test_policy_names_a_tool() -> None:
    policy = resolve("posix", "save", TOOLS)
    assert (policy.tool, policy.dictionary, policy.mode) == ("posix", None, None)
    with pytest.raises(ValueError, match="posix"):
        policy.ask("save", ".")


def test_policy_is_a_dictionary_or_the_path_of_one(tmp_path: Path) -> None:
    mine = WDic()
    assert resolve(mine, "save", TOOLS).ask("save", ".") is mine
    path = tmp_path / "mine.json"
    mine.dump(path)
    for named in (path, str(path)):
        policy = resolve(named, "save", TOOLS)
        assert policy.dictionary is not None
        assert policy.dictionary is resolve(named, "load", TOOLS).dictionary  # read once
        assert not policy.dictionary.learn
    path.write_text("{}")
    with pytest.raises(DictionaryError, match=r"mine\.json"):
        resolve(path, "save", TOOLS)


def test_policy_is_a_mode(tmp_path: Path) -> None:
    folder = str(tmp_path)
    wdic, rdic = dicts.default("save", folder), dicts.default("load", folder)
    assert type(wdic) is WDic
    assert type(rdic) is RDic
    assert resolve("auto", "save", TOOLS).ask("save", folder) is wdic
    assert resolve("auto", "load", TOOLS).ask("load", folder) is rdic
    assert resolve("w", "save", TOOLS).ask("save", folder) is wdic
    fill(wdic, SAVE, {"uring": 1.0, "posix": 2.0})
    fill(rdic, LOAD, {"uring": 2.0, "posix": 1.0})
    two = ("uring", "posix")
    assert resolve("w", "load", TOOLS).ask("load", folder).choose(LOAD, MIB, two).tool == "uring"
    assert resolve("r", "save", TOOLS).ask("save", folder).choose(SAVE, MIB, two).tool == "posix"
    both = resolve("w+r", "save", TOOLS).ask("save", folder)
    assert both.times(SAVE, MIB, two) == pytest.approx({"uring": 3.0, "posix": 3.0}, rel=0.02)
    assert resolve("auto", "activation", TOOLS).mode == "w+r"


def test_what_auto_means_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTIO_POLICY", "torch")
    assert resolve("auto", "save", TOOLS).tool == "torch"
    assert resolve("posix", "save", TOOLS).tool == "posix"
    monkeypatch.setenv("FASTIO_POLICY", "nonsense")
    with pytest.raises(ValueError, match="FASTIO_POLICY='nonsense'"):
        resolve("auto", "save", TOOLS)


@pytest.mark.parametrize("policy", ["fastest", "", "W", None, 3, b"posix.json", ["posix"]])
def test_any_other_policy_is_an_error_that_names_what_is_accepted(policy: object) -> None:
    with pytest.raises(ValueError, match=r"'auto', 'w', 'r', 'w\+r'.*uring, posix, torch.*\.json"):
        resolve(policy, "save", TOOLS)
