"""How far a starting dictionary may be off: told by machines of which it is known. The times are made up."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from fastio.dicts import Dictionary
from fastio.dicts.priors import usual_doubt
from fastio.errors import DictionaryError
from fastio_bench.tools import starting_dictionaries
from fastio_bench.tools.prior_uncertainty import LEAST, doubts
from fastio_bench.tools.trace import Row

SIZES = [str(1 << octave) for octave in range(12, 24)]
TRUE = {"posix": 0.02, "numpy": 0.02, "uring": 0.1, "dali": 0.4}


def machines(count: int, seed: int, true: dict[str, float] = TRUE) -> list[dict[str, dict[str, float]]]:
    """Machines, one ten times as fast as another, whose tools deviate by so much from their usual ratios."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        level = chance.uniform(0, math.log(10))
        made.append({size: {t: math.exp(level + chance.gauss(0, true[t])) * 1000 for t in true} for size in SIZES})
    return made


def test_tools_that_are_alike_everywhere_are_doubted_less_than_those_that_are_not() -> None:
    for seed in range(20):
        found = doubts(machines(5, seed))
        assert list(found) == SIZES
        for size, own in found.items():
            alike = max(own["posix"], own["numpy"])
            assert LEAST <= alike < 0.7 * usual_doubt(int(size)), (seed, size, own)
            assert alike < min(own["uring"], own["dali"]), (seed, size, own)


def test_many_machines_tell_it_nearly_as_it_is() -> None:
    (found,) = [own for size, own in doubts(machines(40, 1)).items() if size == "65536"]
    assert found["uring"] == pytest.approx(0.1, rel=0.25)
    assert found["dali"] == pytest.approx(0.4, rel=0.25)


def test_how_fast_a_machine_is_says_nothing() -> None:
    one, other = machines(2, 3)
    faster = {size: {tool: 7 * value for tool, value in own.items()} for size, own in other.items()}
    for size, own in doubts([one, other]).items():
        assert doubts([one, faster])[size] == pytest.approx(own, rel=0.1)


def test_one_machine_and_a_size_that_one_has_tell_nothing() -> None:
    one, other = machines(2, 4)
    assert doubts([one]) == doubts([]) == {}
    del other["4096"], other["8192"]["dali"]
    found = doubts([one, other])
    assert "4096" not in found
    assert set(found["8192"]) == {"posix", "numpy", "uring"}


def rows(*ratios: float) -> list[Row]:
    """Saves and loads of 1 MiB, in which posix takes so much of uring's time."""
    works = ("pt save", "pt cold load")
    return [Row(work, 1 << 20, {"uring": 1e-3, "posix": 1e-3 * ratio}) for work in works for ratio in ratios]


def test_a_dictionary_of_two_machines_says_how_far_they_are_apart_and_one_of_a_single_one_does_not() -> None:
    (alone,), (far,), (near,) = (
        starting_dictionaries.rules(own)["save"]
        for own in ([rows(*[0.5] * 6)], [rows(*[0.5] * 6), rows(*[1.5] * 6)], [rows(*[0.5] * 6), rows(*[0.51] * 6)])
    )
    assert "doubt" not in alone
    size = str(1 << 20)
    assert near["doubt"][size]["posix"] < usual_doubt(1 << 20) < far["doubt"][size]["posix"]


@pytest.mark.parametrize(
    ("doubt", "said"),
    [
        ("0.3", "must map sizes of its 'bandwidth'"),
        ('{"8192": {"a": 0.1}}', "must map sizes of its 'bandwidth'"),
        ('{"4096": 0.3}', "at size 4096 must map tools of which it has MB/s"),
        ('{"4096": {"c": 0.1}}', "at size 4096 must map tools of which it has MB/s"),
        ('{"4096": {"a": 0}}', "doubt of 'a' at size 4096 must be above 0 and below 10, got 0"),
        ('{"4096": {"a": true}}', "doubt of 'a' at size 4096 must be above 0 and below 10, got True"),
        ('{"4096": {"a": 1e400}}', "doubt of 'a' at size 4096 must be above 0 and below 10, got inf"),
    ],
)
def test_a_doubt_that_makes_no_sense_is_refused(tmp_path: Path, doubt: str, said: str) -> None:
    path = tmp_path / "mine.json"
    prior = f'{{"where": {{"op": "save"}}, "bandwidth": {{"4096": {{"a": 1, "b": 2}}}}, "doubt": {doubt}}}'
    path.write_text(f'{{"schema": "fastio-dictionary/1", "contexts": [], "priors": [{prior}]}}')
    with pytest.raises(DictionaryError, match=said):
        Dictionary.load(path)
