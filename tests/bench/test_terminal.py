"""Tables and progress in terminals of any width: every number and word, and the time left."""

from __future__ import annotations

import io
import re
from collections import Counter
from dataclasses import asdict
from itertools import product

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from fastio.dicts import Explanation
from fastio.dicts.context import save_context
from fastio.dicts.explain import Entry
from fastio.formats.detect import PT
from fastio_bench.harness.progress_meter import Meter
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.harness.stats import Summary, summarise
from fastio_bench.io import sweep
from fastio_bench.io import tables as io_tables
from fastio_bench.model import tables as model_tables
from fastio_bench.papers import figures as papers
from fastio_bench.peers import compare, goals
from fastio_bench.report import cells, findings_tables, summary_tables, terminal
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.workloads import objects

WIDTHS = (40, 60, 80, 120)
TOOLS = ("torch", "uring", "posix", "numpy", "dali", "disk limit")
FAILED = [
    Failure(sweep.DURABLE, "tensor-1568", "gds", 0, "ToolUnavailableError: no GPU here that the driver can reach")
]


def measured(works: tuple[str, ...], names: list[str]) -> list[Summary]:
    """Summaries of tools, with no two equal figures."""
    found, seconds = [], 0.0127
    for work, name, tool in product(works, names, TOOLS):
        seconds *= 1.0317
        nbytes = objects.find(name).nbytes
        found += [
            Sample(
                work, name, tool, number, nbytes, seconds * (1 + number / 7), seconds / 3, 77 << 20, f"{tool}, direct"
            )
            for number in range(3)
        ]
    return summarise(found)


def tables() -> list[ResultTable]:
    swept = measured(sweep.WORKS, [objects.one_tensor(batch).name for batch in sweep.BATCHES])
    models = measured(compare.WORKS, ["alexnet", "toy"])
    return [
        *papers.tables(),
        *io_tables.measured(swept, FAILED),
        *model_tables.tables(models, []),
        *summary_tables.sides(models, []),
        summary_tables.figures(models),
        summary_tables.failures(FAILED),
    ]


def summed() -> list[ResultTable]:
    """The tables that commands make of their samples for the terminal."""
    swept = measured(sweep.WORKS, ["tensor-1568", "tensor-3.0625"])
    peers = measured(compare.WORKS, ["bert-large"])
    checked = goals.check(peers, frozenset({"bert-large"}))
    return [
        summary_tables.matrix("fastio's tools", swept),
        summary_tables.comparison("BERT-large", peers, {work: work for work in compare.WORKS}),
        *findings_tables.tables({"goals": [goal.document() for goal in checked]}),
    ]


def printed(piece: RenderableType, width: int) -> str:
    with (console := Console(width=width, markup=False, highlight=False)).capture() as page:
        console.print(piece)
    said = page.get()
    assert max(map(cell_len, said.splitlines())) <= width
    return said


def figures(text: str) -> Counter[str]:
    return Counter(found.rstrip(",") for found in re.findall(r"[\d.,]*\d[\d.,e%-]*", text))


def words(text: str) -> set[str]:
    """The words that are never broken, without the commas that lines have after them."""
    return {word.rstrip(",") for word in text.split() if len(word) <= 16} - {"-"}


class TestNarrow:
    @pytest.mark.parametrize("width", WIDTHS)
    def test_tables_keep_every_number_and_word(self, width: int) -> None:
        for table in (*tables(), *summed()):
            text = " ".join(cell for row in table.rows for cell in cells.texts(table, row))
            said = printed(terminal.render(table), width)
            assert not figures(text) - figures(said), table.name
            assert not words(text) - words(said), table.name

    def test_too_wide_table_prints_rows_as_lines(self) -> None:
        rows: list[list[Cell]] = [
            ["durable write", "uring", 1234, 2345, "missed", "a way of many words"],
            ["write", "posix", None, 17, "", ""],
        ]
        table = ResultTable("speeds", "Speeds", ("work", "tool", "MB/s*", "best*", "", "way"), rows)
        assert [line.rstrip() for line in printed(terminal.fitted(table), 34).splitlines()] == [
            "Speeds",
            "durable write, uring",
            "  MB/s: 1,234  best: 2,345  missed",
            "  way: a way of many words",
            "write, posix",
            "  best: 17",
            "",
        ]

    def test_first_column_shrinks_last(self) -> None:
        table = ResultTable("why", "Why", ("work", "why"), [["one tensor, 49 MiB, durable save", "word " * 40]])
        assert "one tensor, 49 MiB, durable save" in printed(terminal.fitted(table), 60)

    def test_wide_terminal_prints_a_table(self) -> None:
        assert all("┃" in printed(terminal.render(table), 150) for table in summed())

    def test_learned_table_has_used_and_fastest_tool(self) -> None:
        entries = (
            Entry("uring", 0.005, 0.004, 0.006, 1.0, 3, 0, "this size", None),
            Entry("posix", 0.0053, 0.005, 0.006, 1.06, 1, 2, "this size", None),
            Entry("numpy", None, None, None, 1.5, 0, 0, "what ships", None),
        )
        context = save_context(PT, "cpu", False, 3_211_264, 1)
        answer = Explanation(context, 3_211_264, "posix", "tries it once more", 0.62, entries)
        (table,) = findings_tables.known({"learned": [{"work": "3.0625 MiB, save", **asdict(answer)}]})
        assert [*table.columns[1:5]] == ["uses now", "fastest", "sure %*", "takes ms*"]
        assert table.rows[0][1:6] == ["posix", "uring", 62, 5.0, "posix 1.06 x, numpy 1.50 x"]

    @pytest.mark.parametrize("width", WIDTHS)
    def test_progress_keeps_the_time_left(self, width: int) -> None:
        stream = io.StringIO()
        console = Console(file=stream, width=width, force_terminal=True, color_system=None)
        with Meter(console, [1.0, 1.0]) as meter:
            meter.tell("BERT-large, 391 tensors: durable save, fresh process", 1.0)
        said = stream.getvalue()
        assert re.search(r"0:00:\d\d left (-:--:--|0:00:\d\d)", said)
        assert {"391", "tensors:", "process"} <= set(said.split())

    def test_progress_writes_a_line_a_minute_to_a_log(self) -> None:
        stream, now = io.StringIO(), 0.0
        with Meter(Console(file=stream, width=40), [1.0] * 10, lambda: now) as meter:
            for _ in range(7):
                now += 20
                meter.tell("tensor of [4096, 4096], 64.0 MiB: cold load", 1.0)
        assert stream.getvalue().rstrip().splitlines() == [
            "0:01:00 tensor of [4096, 4096], 64.0 MiB: cold load, 0:02:20 left",
            "0:02:00 tensor of [4096, 4096], 64.0 MiB: cold load, 0:01:20 left",
        ]
