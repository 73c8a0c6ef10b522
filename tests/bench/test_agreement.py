"""The agreement of two runs of ``fastio-bench peers``, from documents of known speeds, and on the report's page."""

from __future__ import annotations

from pathlib import Path

import pytest

from benching import invoke
from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.run_record import Report
from fastio_bench.machine import disk_limit
from fastio_bench.peers.agreement import agreement, tables
from fastio_bench.report.documents import Document, read

NBYTES = 10**9


def run(folder: Path, name: str, speeds: dict[str, dict[str, float]], workload: str = "bert-large") -> Document:
    """A document of GB/s by work and tool."""
    report = Report("peers", folder, {"name": name}, name)
    for work, tools in speeds.items():
        report.samples += [Sample(work, workload, tool, 0, NBYTES, 1 / speed, 0.1) for tool, speed in tools.items()]
    return read(report.write(folder))


def test_equal_or_uniformly_scaled_speeds_agree(tmp_path: Path) -> None:
    speeds = {"save": {"torch": 1.0, "numpy": 3.0, "fastio": 4.0}, "warm load": {"torch": 2.0, "fastio": 8.0}}
    one = run(tmp_path, "one", speeds)
    other = run(tmp_path, "other", {work: {t: 2 * s for t, s in tools.items()} for work, tools in speeds.items()})
    rows = agreement(one, other)
    assert [(row.work, row.workload, row.agrees) for row in rows] == [
        ("save", "bert-large", True),
        ("warm load", "bert-large", True),
    ]
    assert [row.apart for row in rows] == pytest.approx([1, 1])
    assert rows[0].winners == ("fastio", "fastio")
    assert rows[0].margins == pytest.approx((4 / 3, 4 / 3))


@pytest.mark.parametrize(
    ("first", "second", "agrees"),
    [
        ({"torch": 1.0, "fastio": 1.25}, {"torch": 1.0, "fastio": 0.9}, False),  # ahead by a quarter, then behind
        ({"torch": 1.0, "fastio": 0.9}, {"torch": 1.0, "fastio": 1.25}, False),
        ({"torch": 1.0, "fastio": 1.15}, {"torch": 1.0, "fastio": 0.9}, True),  # no tool is ahead by a fifth
        ({"torch": 1.0, "fastio": 1.3}, {"torch": 1.0, "fastio": 4.0}, True),
        ({"torch": 1.0, "fastio": 1.3}, {"torch": 1.0, "fastio": 4.2}, False),  # 3.23 times the ratio
        ({"torch": 1.0, "fastio": 4.2}, {"torch": 1.0, "fastio": 1.3}, False),
        ({"torch": 1.0, "fastio": 4.2, "numpy": 0.1}, {"torch": 1.0, "fastio": 4.2, "numpy": 0.5}, False),
    ],
)
def test_agrees_by_order_of_magnitude_and_winner(
    first: dict[str, float], second: dict[str, float], agrees: bool, tmp_path: Path
) -> None:
    (row,) = agreement(run(tmp_path, "one", {"save": first}), run(tmp_path, "other", {"save": second}))
    assert row.agrees is agrees


def test_compares_only_rows_and_tools_of_both_runs(tmp_path: Path) -> None:
    """The disk's limit is not compared."""
    alone = {"torch": 1.0}
    several = {"torch": 1.0, "fastio": 2.0, "DALI": 7.0, disk_limit.TOOL: 9.0, disk_limit.RING: 8.0}
    one = run(tmp_path, "one", {"save": several, "cold load": alone})
    other = run(tmp_path, "other", {"save": {"torch": 1.0, "fastio": 2.0, disk_limit.TOOL: 0.1}, "cold load": alone})
    (row,) = agreement(one, other)
    assert (row.work, row.agrees, row.winners) == ("save", True, ("fastio", "fastio"))
    elsewhere = run(tmp_path, "small", {"save": {"torch": 1.0, "fastio": 2.0}}, "small-tensors")
    assert agreement(one, elsewhere) == []
    assert [table.title for table in tables([one, other, elsewhere])] == [
        "peers-one and peers-other agree in 1 of 1 rows"
    ]


def test_report_page_shows_the_agreement(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(tmp_path, "one", {"save": {"torch": 1.0, "fastio": 2.0}, "warm load": {"torch": 1.0, "fastio": 1.5}})
    invoke("report", str(tmp_path))
    assert "Do runs of peers agree?" not in (tmp_path / "report.html").read_text()
    run(tmp_path, "other", {"save": {"torch": 1.0, "fastio": 2.5}, "warm load": {"torch": 1.0, "fastio": 0.5}})
    invoke("report", str(tmp_path))
    section = (tmp_path / "report.html").read_text().partition("Do runs of peers agree?")[2]
    assert "peers-one and peers-other agree in 1 of 2 rows" in section
    assert [row.partition("</td>")[0] for row in section.split("<tr><td>")[1:]] == ["agree", "differ"]
