"""The charts of ``tools``, ``tune`` and ``offload``: their data, and the files."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from matplotlib import image
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import results as made
from benching import invoke
from fastio.dicts import Explanation
from fastio.dicts.context import Context
from fastio.dicts.explain import Entry
from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.stats import summarise
from fastio_bench.offload import charts as offload_charts
from fastio_bench.offload.accuracy import Accuracy
from fastio_bench.papers import batch_growth, offload_simulated
from fastio_bench.report import charts, plots
from fastio_bench.report.charts import Chart, Sheet
from fastio_bench.report.table import ResultTable
from fastio_bench.tools import charts as tools_charts
from fastio_bench.tools import tune_charts

MIB = 1 << 20


def drawn(chart: Chart) -> Axes:
    axes = Figure().add_subplot()
    chart.draw(axes, charts.color)
    return axes


def bars(axes: Axes) -> list[tuple[float, float]]:
    """The begin and the length of each bar."""
    return [(bar.get_x(), bar.get_width()) for bar in axes.patches if isinstance(bar, Rectangle)]


def names(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_yticklabels()]


class TestTools:
    def sheets(self, tables: list[ResultTable]) -> dict[str, Sheet]:
        return {sheet.name: sheet for sheet in tools_charts.sheets(tables)}

    def test_spread_chart_has_a_bar_per_size_with_all_rebuilds(self, tmp_path: Path) -> None:
        sheet = self.sheets(made.chosen(tmp_path).tables)["spread"]
        assert (sheet.series, len(sheet.charts)) == (["posix", "uring"], 2)
        axes = drawn(sheet.charts[0])
        assert names(axes) == ["0.00410 MB (4)", "1.05 MB (2)"]
        assert bars(axes) == [(0, 75), (0, 0), (75, 25), (0, 100)]

    def test_reach_chart_has_a_row_per_way(self, tmp_path: Path) -> None:
        (table,) = (one for one in made.chosen(tmp_path).tables if one.name == "reach")
        sheet = self.sheets([table])["reach"]
        axes = drawn(sheet.charts[0])
        assert [chart.title for chart in sheet.charts] == ["transformer", "vit"]
        assert names(axes) == [str(row[0]) for row in table.rows]
        cases, times = ([row[column] for row in table.rows] for column in (1, 2))
        assert [width for _, width in bars(axes)] == pytest.approx([*times, *cases])

    def test_oracle_chart_has_ratios_to_the_oracle(self, tmp_path: Path) -> None:
        sheet = self.sheets(made.chosen(tmp_path).tables)["oracle"]
        assert [chart.title for chart in sheet.charts] == ["simulated: a recorded trace", "measured here: live calls"]
        axes = drawn(sheet.charts[1])
        assert names(axes) == ["auto", "auto, as timed", "posix", "uring"]
        assert [width for _, width in bars(axes)] == [1.02, 1.1, 1.3, 1.5]

    def test_table_with_other_columns_has_no_chart(self) -> None:
        found = [
            ResultTable(name, name, ("x*",), [[1]]) for name in ("spread-vit", "reach", "replayed", "live", "other")
        ]
        assert self.sheets(found) == {}
        assert self.sheets([]) == {}


def explained(nbytes: int, used: str) -> Explanation:
    """uring moves 2 GB/s, posix 1 GB/s; torch's speed is unknown."""
    seconds = {"uring": nbytes / 2e9, "posix": nbytes / 1e9, "torch": None}
    entries = [Entry(tool, took, took, took, 1.0, 3, 0, "here", None) for tool, took in seconds.items()]
    return Explanation(Context("save", "pt", "cpu"), nbytes, used, "", 1.0, tuple(entries))


def test_learned_chart_marks_the_tool_in_use() -> None:
    learned = [
        (f"one tensor, {size} MiB, save", explained(size * MIB, used)) for size, used in ((1, "posix"), (4, "uring"))
    ]
    learned.append(("391 tensors, save", explained(9 * MIB, "uring")))
    findings = {"learned": [{"work": work, **asdict(answer)} for work, answer in learned]}
    (sheet,) = tune_charts.sheets(findings)
    assert sheet.series == ["uring", "posix", "torch"]
    (chart,) = sheet.charts
    lines = drawn(chart).lines
    uring, posix, *rings = [[(x, round(y)) for x, y in zip(*line.get_data(), strict=True)] for line in lines]
    assert uring == [(1, 2000), (4, 2000)]
    assert posix == [(1, 1000), (4, 1000)]
    assert rings == [[(1, 1000)], [(4, 2000)]]
    assert list(tune_charts.sheets({})) == []


class TestOffload:
    def test_iteration_grows_with_the_batch_up_to_capacity(self) -> None:
        found = {one.way: one for one in batch_growth.courses(offload_simulated.V100_SSD)}
        assert set(found) == set(offload_simulated.WAYS)
        largest = {one.way: one.runs for one in offload_simulated.capacities(offload_simulated.V100_SSD)}
        for way, course in found.items():
            assert course.slowdowns[0] >= 1
            assert 0 <= largest[way] - course.batches[-1] < 16, way
        assert set(found["plain"].slowdowns) == {1.0}
        assert found["flashneuron"].slowdowns[-1] > found["flashneuron"].slowdowns[0] == 1

    def test_no_chart_if_no_batch_trains(self) -> None:
        small = replace(offload_simulated.V100_SSD, memory=1 << 20)
        assert all(one.batches == () for one in batch_growth.courses(small))
        findings = {"simulated": {"courses": [asdict(one) for one in batch_growth.courses(small)]}}
        assert list(offload_charts.sheets(findings)) == []

    def test_diverged_losses_leave_a_gap(self) -> None:
        plain = Accuracy("plain", (0.9, 0.8), ((2.0, 1.0), (4.0, 3.0)))
        own = {**asdict(replace(plain, way="fp16")), "losses": [[2.0, None], [4.0, 3.0]]}  # as JSON has them
        (sheet,) = offload_charts.sheets({"accuracy": [asdict(plain), own]})
        assert sheet.series == ["plain", "fp16"]
        losses, scores = map(drawn, sheet.charts)
        means = [list(line.get_ydata()) for line in losses.lines]
        assert means[0] == [3, 2]
        assert means[1][0] == 3
        assert math.isnan(means[1][1])
        assert [list(line.get_ydata()) for line in scores.lines] == [[90, 80]] * 2
        assert list(offload_charts.sheets({"accuracy": [{**own, "losses": []}]})) == []  # the form of old documents

    def test_depths_chart_has_a_bar_per_way(self) -> None:
        (sheet,) = offload_charts.sheets({"depths": [{"way": "plain", "depth": 8}, {"way": "all", "depth": 100}]})
        assert [width for _, width in bars(drawn(sheet.charts[0]))] == [8, 100]


class TestFiles:
    def test_writes_one_png_per_sheet(self, tmp_path: Path) -> None:
        findings = {"depths": [{"way": "plain, which costs $5 and $6", "depth": 8}]}
        sheets = [*tools_charts.sheets(made.chosen(tmp_path).tables), *offload_charts.sheets(findings)]
        written = charts.write(tmp_path / "trial", sheets)
        assert [path.name for path in written] == [
            f"trial-{name}.png" for name in ("spread", "reach", "oracle", "depths")
        ]
        for path in written:
            pixels = image.imread(path)[:, :, :3]
            assert pixels.shape[1] > 700
            assert 0.01 < (pixels.min(axis=2) < 0.8).mean() < 0.7  # something is drawn, but not everywhere

    def test_simulate_writes_charts(self, tmp_path: Path) -> None:
        invoke("offload", "--simulate", "--dir", str(tmp_path), "--out", str(tmp_path / "out"))
        assert {path.name for path in tmp_path.glob("out/*.png")} == {
            "offload-simulated-batches.png",
            "offload-simulated-networks.png",
        }


def test_plots_in_files_are_signed_below_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signed: list[tuple[str, float, float]] = []
    sign = plots._sign

    def watched(figure: Any, text: str) -> None:
        before = figure.get_figheight()
        sign(figure, text)
        line = figure.texts[-1]  # after the title
        figure.draw_without_rendering()
        top = line.get_window_extent().y1
        lowest = min(axes.get_tightbbox().y0 for axes in figure.axes)
        lowest = min([lowest, *(legend.get_window_extent().y0 for legend in figure.legends)])
        signed.append((line.get_text().replace("\n", " "), lowest - top, figure.get_figheight() - before))

    monkeypatch.setattr(plots, "_sign", watched)
    bars = Chart("one", charts.rows(2), lambda axes, color: axes.barh([0, 1], [1, 2], color=color(0)))
    sheets = [Sheet("two", "Two", "both", ("a", "b"), [bars]), Sheet("one", "One", "it", ("a",), [bars])]
    origin = "measured 2026-01-01 10:00 UTC on a-host by fastio-bench peers " + " ".join(
        f"--tool {n}" for n in range(40)
    )
    with plots.signed(origin):
        charts.write(tmp_path / "run", sheets)
        plots.draw(tmp_path / "run", summarise([Sample("save", "bert", "torch", 0, 10**9, 1.0, 0.1)]))
    assert [text for text, _, _ in signed] == [origin] * 3
    assert all(gap >= 0 and grown > 0 for _, gap, grown in signed)
    charts.write(tmp_path / "run", sheets)
    assert len(signed) == 3
