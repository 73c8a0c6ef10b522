"""The starting dictionaries made of a trace: its ratios, at its sizes, and what no trace has is kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from fastio.dicts import Dictionary, shipped
from fastio.dicts.context import Context
from fastio.dicts.priors import NOTHING, parse_rules, rule_for
from fastio.dicts.tuner import Tuner
from fastio_bench.tools import starting_dictionaries, trace
from fastio_bench.tools.trace import Row

SHIPPED = Path(shipped.__file__).parent
SAVE = Context("save", "pt", "cpu", durable=False)


def rows(work: str, *sizes: int) -> list[Row]:
    """Made up: posix moves 1,000 MB/s, uring half of that; in every third line the machine is ten times slower."""
    slow = [10.0 if place % 3 == 0 else 1.0 for place in range(len(sizes))]
    return [
        Row(work, nbytes, {"posix": busy * nbytes / 1e9, "uring": busy * nbytes / 0.5e9})
        for nbytes, busy in zip(sizes, slow, strict=True)
    ]


def test_a_bandwidth_is_a_median_and_its_ratios_are_those_within_a_line() -> None:
    found = starting_dictionaries.bandwidths(rows("pt save", *[1 << 20] * 9, *[1 << 24] * 4))
    assert found == {str(1 << 20): {"posix": 1000.0, "uring": 500.0}}  # four lines are too few


def test_a_tool_that_took_no_part_in_some_lines_is_not_listed() -> None:
    some = [
        row if place else row._replace(seconds={**row.seconds, "dali": 1.0})
        for place, row in enumerate(rows("npy cold load", *[4096] * 6))
    ]
    assert set(starting_dictionaries.bandwidths(some)["4096"]) == {"posix", "uring"}


def test_rules_of_one_format_come_before_those_of_all() -> None:
    made = starting_dictionaries.rules([[*rows("pt cold load", *[4096] * 5), *rows("npy cold load", *[4096] * 5)]])
    assert made["save"] == []
    assert [rule["where"] for rule in made["load"]] == [
        {"op": "load", "device": "cpu", "format": "npy", "resident": False},
        {"op": "load", "device": "cpu", "resident": False},
    ]
    assert "5 interleaved pt cold loads of one tensor of 4,096 to 4,096 bytes" in made["load"][1]["source"]


def test_what_is_written_is_a_dictionary_that_keeps_what_no_trace_has(tmp_path: Path) -> None:
    before = {}
    for name in starting_dictionaries.FILES.values():
        shutil.copy(SHIPPED / name, tmp_path)
        before[name] = json.loads((tmp_path / name).read_text())["priors"]
    starting_dictionaries.main(str(tmp_path), str(trace.SHIPPED))
    for op, name in starting_dictionaries.FILES.items():
        after = json.loads((tmp_path / name).read_text())["priors"]
        other = [rule for rule in before[name] if "make dictionaries" not in rule["source"]]
        assert after[: len(other)] == other != []
        assert [rule["where"]["op"] for rule in after] == [op] * len(after)
        assert Dictionary.load(tmp_path / name).choose(SAVE, 1 << 20, ("torch", "posix")).order


def test_traces_of_loads_alone_write_nothing(tmp_path: Path) -> None:
    path = tmp_path / "loads.csv"
    path.write_text(trace.text(rows("pt cold load", *[4096] * 5), []))
    for name in starting_dictionaries.FILES.values():
        shutil.copy(SHIPPED / name, tmp_path)
    with pytest.raises(ValueError, match=r"loads.csv: got no line of a save"):
        starting_dictionaries.main(str(tmp_path), str(path))
    for name in starting_dictionaries.FILES.values():
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes()


def test_the_files_that_ship_are_as_they_are_written() -> None:
    for name in starting_dictionaries.FILES.values():
        shipped = (SHIPPED / name).read_text()
        assert starting_dictionaries.text(json.loads(shipped)) == shipped


@pytest.mark.parametrize("work", ["pt durable save", "pt save", "pt cold load", "pt warm load", "npy cold load"])
def test_a_tuner_begins_with_the_tool_that_was_the_fastest(work: str) -> None:
    made = starting_dictionaries.rules([rows(work, *[1 << 20] * 7)])
    rule = rule_for(parse_rules([*made["save"], *made["load"]]), trace.context(work, 1 << 20))
    assert Tuner(rule).choose(1 << 20, ("uring", "posix")).tool == "posix"


H100 = "cuda NVIDIA H100 80GB HBM3, node 0"


def test_device_memory_begins_with_what_was_measured_of_its_class() -> None:
    tools = ("gds", "pinned", "torch")
    for op, told in (("load", {"resident": False}), ("load", {"resident": True}), ("save", {"durable": True})):
        for device in ("cuda", H100):
            choice = Dictionary().choose(Context(op, "safetensors", device, **told), 1 << 30, tools)
            assert (choice.tool, choice.order[-1]) == ("pinned", "torch"), choice
        for device in ("simulated fast", "cudax", "xpu"):
            assert rule_for(shipped.shipped_rules(), Context(op, "pt", device, **told)) is NOTHING


def test_the_closest_label_of_a_device_decides() -> None:
    rules = parse_rules(
        [
            {"where": {"op": "load", "device": device}, "bandwidth": {"4096": {tool: 1}}}
            for tool, device in (("a", ["cpu", "cuda"]), ("b", "cuda NVIDIA H100 80GB HBM3"), ("c", "cuda NVIDIA"))
        ]
    )
    for device, tool in (
        ("cuda AMD", "a"),
        (H100.partition(",")[0], "b"),
        (H100, "b"),
        ("cuda NVIDIA H200", "c"),
        ("cpu", "a"),
    ):
        assert rule_for(rules, Context("load", "pt", device, resident=True)).prior.lists(tool), device
