"""docs/policies.md shows the tuner's numbers as they are, each with its source and its sensitivity."""

from __future__ import annotations

import re
from pathlib import Path

from fastio.dicts import constants
from fastio_bench.tools import scenarios
from fastio_bench.tools.trace import Row

DOCS = Path(__file__).parents[2] / "docs" / "policies.md"


def test_docs_show_every_number_as_it_is() -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \| [^|]+ \| [^|]+ \| [^|]+ \|$", DOCS.read_text(), re.MULTILINE)
    shown = {name: eval(value, {}) for name, value in rows}
    assert shown == {name: value for name, value in vars(constants).items() if name.isupper()}


def test_scenarios_hold_the_dictionary_against_the_single_tool_and_the_oracle() -> None:
    times = {"uring": 1e-3, "posix": 2e-3, "torch": 4e-3}
    rows = [Row(work, 1 << 20, times) for work in ("pt save", "pt warm load") for _ in range(60)]
    found = scenarios.table([rows])
    assert {"WDic: steady", "RDic: steady", "WRDic: steady", "RDic: first calls: programs of one call"} <= found.keys()
    assert all(ours >= 1 - 1e-9 and single >= 1 - 1e-9 for ours, single in found.values())
    assert found["WDic: steady"][1] == 1
    assert found["WDic: the best tool slower for a while"][1] > 1.2


def test_sensitivity_leaves_every_number_as_it_was() -> None:
    before = {name: value for name, value in vars(constants).items() if name.isupper()}
    rows = [Row("pt save", 1 << 20, {"a": 1e-3, "b": 2e-3}) for _ in range(6)]
    told = list(scenarios.sensitivity([rows]))
    assert {(name, factor) for name, factor, _, _ in told} == {(name, factor) for name in before for factor in (0.5, 2)}
    assert {name: value for name, value in vars(constants).items() if name.isupper()} == before
