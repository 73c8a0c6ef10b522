"""What `fastio-bench peers` says first."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.run_record import Report
from fastio_bench.harness.stats import summarise
from fastio_bench.machine import disk_limit, limit_tables, others
from fastio_bench.peers import verdict
from fastio_bench.report.documents import read_folder
from fastio_bench.report.page import page

SECONDS = {
    "cold load": {"torch": 1.0, "fastio": 0.5, "numpy": 0.8, "safetensors": 0.75, disk_limit.TOOL: 0.4},
    "warm load": {"torch": 1.0, "fastio": 0.25, "torch, mmap": 0.01, "numpy": 0.5, "safetensors": 0.01},
}
SAMPLES = [
    Sample(work, "bert", tool, 0, 10**9, seconds, 0.1)
    for work, by_tool in SECONDS.items()
    for tool, seconds in by_tool.items()
]


def test_compares_with_torch_the_best_that_copies_and_the_limit() -> None:
    (table,) = verdict.tables(summarise(SAMPLES))
    assert [list(row) for row in table.rows] == [
        ["cold load", 2000.0, 2.0, 1.5, "safetensors", 80.0],
        ["warm load", 4000.0, 4.0, 2.0, "numpy", None],
    ]
    assert verdict.lines(summarise(SAMPLES)) == [
        "bert: fastio is 2.0 to 4.0 times as fast as torch, and 1.5 to 2.0 times as fast as the best other library"
    ]


def test_says_how_many_rounds_and_that_a_limit_was_measured_too_low() -> None:
    (table,) = verdict.tables(summarise(SAMPLES))
    assert table.note.startswith("one round: ")
    assert "too low" not in table.note
    slow = [replace(one, seconds=0.6) if one.tool == disk_limit.TOOL else one for one in SAMPLES]
    quick = [replace(one, round=1, seconds=0.55) for one in slow if one.tool == disk_limit.TOOL]
    (table,) = verdict.tables(summarise([*slow, *quick]))
    assert table.rows[0][-1] == pytest.approx(110.0)  # of the limit's fastest round
    assert "medians of 1 to 2 rounds" in table.note
    assert "cold load: more than 100 % of the limit: the limit was measured too low" in table.note
    (limits,) = limit_tables.limits(summarise(slow), {})
    assert "measured too low" in limits.note
    (limits,) = limit_tables.limits(summarise(SAMPLES), {})
    assert "measured too low" not in limits.note


def test_a_busy_machine_is_told() -> None:
    stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 0 100 700 50 0 0 50 40 0\ncpu1 500 0 0 0 0 0 0 0 0 0\nintr 5\n"
    ticks = os.sysconf("SC_CLK_TCK")
    assert others.busy_seconds(stat, {0}) == 250 / ticks
    assert others.busy_seconds(stat, {0, 1}) == 750 / ticks
    assert others.remark(0.4, 2) == []
    (said,) = others.remark(1.26, 2)
    assert said.startswith("a busy machine: others kept 1.3 of 2 processors busy")


def test_says_nothing_of_what_was_not_measured() -> None:
    assert verdict.lines(summarise([one for one in SAMPLES if one.tool != "fastio"])) == []
    alone = summarise([one for one in SAMPLES if one.tool in ("fastio", "torch")])
    assert verdict.lines(alone) == ["bert: fastio is 2.0 to 4.0 times as fast as torch"]
    (table,) = verdict.tables(alone)
    assert len(table.columns) == 4
    assert [list(row) for row in table.rows] == [["cold load", 2000.0, 2.0, None], ["warm load", 4000.0, 4.0, None]]
    assert "librar" not in table.note


def test_page_begins_with_the_verdict_and_names_date_host_and_command(tmp_path: Path) -> None:
    report = Report("peers", tmp_path, {})
    report.samples += SAMPLES
    report.write(tmp_path)
    text = page(read_folder(tmp_path))
    section = text[text.index('<section id="run-peers">') :]
    assert text.index("times as fast as torch") < text.index("<dl>")
    assert section.index("<dt>Measured</dt>") < section.index("<svg")
    assert "<dt>Host</dt>" in section
    assert "<dt>Command</dt>" in section
    assert report.origin.startswith(f"measured {report.began:%Y-%m-%d}")
