"""A dictionary that the user made is followed as it stands; ``learn=False`` freezes any."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.dicts import Context, Dictionary, RDic, WDic, WRDic, resolve
from fastio.errors import DictionaryError

MIB = 1 << 20
TOOLS = ("uring", "posix", "torch")
SAVE = Context("save", "pt", "cpu", durable=False)


def table(sizes: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {"schema": "fastio-dictionary/1", "contexts": [{**SAVE._asdict(), "sizes": sizes}], **others}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """posix up to some MB, torch from there on: named as the best, or by its times."""
    made = tmp_path / "mine.json"
    sizes = {"1048576": {"best": "posix"}, "16777216": {"microseconds": {"posix": [9e3, 5e3], "torch": [6e3]}}}
    made.write_text(json.dumps(table(sizes)))
    return made


def test_a_named_dictionary_is_followed_whatever_is_measured(path: Path) -> None:
    dictionary = resolve(path, "save", TOOLS).ask("save", ".")
    for _ in range(60):
        for nbytes, tool in (4096, "posix"), (MIB, "posix"), (16 * MIB, "torch"), (1 << 34, "torch"):
            choice = dictionary.choose(SAVE, nbytes, TOOLS)
            assert choice.order[0] == choice.tool == tool
            assert sorted(choice.order) == sorted(TOOLS)
            assert not choice.exploring
            assert "the dictionary puts" in choice.reason
            dictionary.observe(SAVE, nbytes, tool, 100.0)
            dictionary.observe(SAVE, nbytes, "uring", 1e-6)
            dictionary.fail(SAVE, nbytes, tool, "refused")
    assert dictionary.explain(SAVE, MIB, TOOLS).tool == "posix"


def test_it_takes_the_next_size_where_the_best_tool_is_not_here(path: Path) -> None:
    dictionary = Dictionary.load(path, learn=False)
    assert dictionary.choose(SAVE, MIB, ("uring", "torch")).tool == "torch"
    assert dictionary.choose(SAVE, MIB, ("uring", "numpy")).order


@pytest.mark.parametrize("times", [{"microseconds": {"posix": [9]}}, {}])
def test_the_reason_names_a_best_tool_that_is_not_here(tmp_path: Path, times: dict[str, Any]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(table({"4096": {"best": "gds", **times}})))
    choice = Dictionary.load(path, learn=False).choose(SAVE, 4096, TOOLS)
    assert choice.reason.startswith("gds cannot be used here; ")
    assert choice.tool == "posix"


def test_tools_that_the_priors_of_a_file_do_not_name_come_last(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    prior = {"where": {}, "bandwidth": {"4096": {"torch": 3000, "posix": 1000}}}
    path.write_text(json.dumps({"schema": "fastio-dictionary/1", "contexts": [], "priors": [prior]}))
    choice = Dictionary.load(path, learn=False).choose(SAVE, MIB, TOOLS)
    assert choice.order == ("torch", "posix", "uring")
    assert "the priors put torch first" in choice.reason


def test_the_best_tool_of_a_row_wins_over_its_times(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(table({"4096": {"best": "uring", "microseconds": {"posix": [1], "uring": [9]}}})))
    assert Dictionary.load(path, learn=False).choose(SAVE, 4096, TOOLS).order[:2] == ("uring", "posix")


def test_a_save_uses_the_tool_of_the_named_dictionary(path: Path, tmp_path: Path) -> None:
    for _ in range(12):
        result = fastio.save(torch.zeros(MIB // 4), tmp_path / "tensor.pt", policy=path, durable=False)
        assert result.tool == "posix"


@pytest.mark.parametrize("kind", [Dictionary, WDic, WRDic])
def test_learn_false_freezes_any_dictionary(path: Path, kind: type[Dictionary]) -> None:
    frozen = kind.load(path, learn=False)
    for dictionary in (frozen, pickle.loads(pickle.dumps(frozen))):
        before = dictionary.__getstate__()
        assert len(before["contexts"][0]["sizes"]) == 2
        for _ in range(50):
            assert dictionary.choose(SAVE, MIB, TOOLS).tool == "posix"
            dictionary.observe(SAVE, MIB, "uring", 1e-6)
        assert not dictionary.learn
        assert dictionary.__getstate__() == before


def test_a_frozen_dictionary_without_a_table_goes_by_its_priors() -> None:
    for dictionary in (WDic(learn=False), RDic(learn=False)):
        choices = {dictionary.choose(SAVE, 784 * MIB, TOOLS).order for _ in range(20)}
        assert len(choices) == 1


def test_a_loaded_dictionary_learns_unless_it_is_frozen(path: Path, tmp_path: Path) -> None:
    learning = Dictionary.load(path)
    for _ in range(12):
        learning.observe(SAVE, MIB, "posix", 9e-3)
        learning.observe(SAVE, MIB, "uring", 1e-3)
    assert learning.choose(SAVE, MIB, ("uring", "posix")).tool == "uring"
    Dictionary.load(path, learn=False).dump(tmp_path / "copy.json")
    assert not Dictionary.load(tmp_path / "copy.json").learn


@pytest.mark.parametrize("broken", [{"learn": 1}, {"contexts": table({"4096": {"best": 3}})["contexts"]}])
def test_what_makes_no_sense_is_an_error(tmp_path: Path, broken: dict[str, Any]) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**table({}), **broken}))
    with pytest.raises(DictionaryError, match="not a usable dictionary"):
        Dictionary.load(path)
