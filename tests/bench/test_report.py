"""The page of ``fastio-bench report``: its content, its errors, and its layout in Chromium."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result
from matplotlib import image
from rich.console import Console

import results as made
from fastio.runtime.installation import pip_install
from fastio_bench.commands import SUBCOMMANDS
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.options import common
from fastio_bench.papers import page as papers_page
from fastio_bench.peers.goals import Goal
from fastio_bench.report import cells, findings_tables, terminal
from fastio_bench.report.documents import read_folder
from fastio_bench.report.options import report
from fastio_bench.report.table import MEASURED, PAPER, SIMULATED, Cell, ResultTable

PLOTS = {"bandwidth": 4, "IOef": 4, "dictionary": 4, "learned": 4, "ways": 2, "timeline": 1}
PLOTS |= {"spread": 2, "reach": 2, "oracle": 2, "batches": 1, "networks": 1, "accuracy": 2}
PHONE, DESK = 390, 1200
HOSTILE = """<script>alert("1")</script> & 'x' --> $\\frac{1}{2}$ id="y" </style></svg>"""
_VOID = {"meta"}


class Page(HTMLParser):
    """A parsed page: its elements with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text.append(data)

    def attributes(self, name: str) -> list[str]:
        return [str(attributes[name]) for _, attributes in self.elements if name in attributes]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made.make(tmp_path_factory.mktemp("bench"))


@pytest.fixture(scope="module")
def page(results: Path) -> Path:
    path = results.parent / "page.html"
    run(results, "-o", str(path))
    return path


def run(folder: Path, *arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(report, [str(folder), *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


def write(folder: Path, told: Any, name: str = "odd.json") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(told if isinstance(told, str) else json.dumps(told))
    return folder


class TestContent:
    def test_page_has_plots_and_tables_of_every_command(self, page: Path) -> None:
        told = Page(page.read_text())
        assert not told.open
        shown = told.attributes("data-plot")
        assert {kind: shown.count(kind) for kind in dict.fromkeys(shown)} == PLOTS
        assert {name for name in told.attributes("id") if name.endswith("-limit")} == {
            "io-bandwidth-0-limit",
            "io-bandwidth-2-limit",
        }
        text = " ".join(told.text)
        for expected in ("doctor", "tune", "io_uring", "measured here", "1 of 2 goals met", "missed", "no GPU here"):
            assert expected in text
        for tool in made.TOOLS:
            assert text.count(tool) > 4

    # DCP remarks that there is no process group, which is meant.
    @pytest.mark.nightly
    @pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
    def test_page_renders_documents_of_all_commands(self, results: Path, tmp_path: Path) -> None:
        folder = made.others(tmp_path)
        for path in results.glob("*.json"):
            shutil.copy(path, folder)
        run(folder)
        told = Page((folder / "report.html").read_text())
        assert not told.open
        commands = {json.loads(path.read_text())["command"] for path in folder.glob("*.json")}
        assert commands == set(SUBCOMMANDS) - {"papers", "report"}
        text = " ".join(told.text)
        for path in folder.glob("*.json"):
            document = json.loads(path.read_text())
            assert f"run-{path.stem}" in told.attributes("id")
            assert all(table["title"] in text for table in document["exhibits"] if table["rows"])
        assert "hybrid (hybrid-store)" in told.text
        assert "no second process here" in text
        rows = papers_page.table(read_folder(folder)).rows
        answered = {str(row[7]).partition(";")[0] for row in rows if str(row[6]).startswith("measured 20")}
        asked = {f"fastio-bench {name}" for name in ("contend", "model", "offload --accuracy", "tools")}
        assert answered >= asked

    def test_page_has_no_script_and_no_external_resource(self, page: Path) -> None:
        told = Page(page.read_text())
        assert not {"script", "link", "img", "iframe", "object", "image"} & {tag for tag, _ in told.elements}
        targets = [*told.attributes("href"), *told.attributes("xlink:href"), *told.attributes("src")]
        assert targets
        assert all(target.startswith("#") for target in targets)
        assert not re.search(r"url\((?!#)|@import|https?:", page.read_text())

    def test_ids_are_unique_and_links_resolve(self, page: Path) -> None:
        text = page.read_text()
        told = Page(text)
        ids = told.attributes("id")
        assert len(ids) == len(set(ids))
        wanted = [*told.attributes("href"), *told.attributes("xlink:href"), *re.findall(r"url\((#[^)]+)\)", text)]
        assert {target[1:] for target in wanted} <= set(ids)

    def test_colours_are_css_variables(self, page: Path) -> None:
        body = page.read_text().partition("</style>")[2]
        assert not re.search(r"(fill|stroke|background|color): *(#|rgb)", body)
        assert {"var(--ink)", "var(--series-0)", "var(--heat-0)"} <= set(re.findall(r"var\([\w-]+\)", body))

    def test_text_is_escaped(self, results: Path, tmp_path: Path) -> None:
        folder = tmp_path / "hostile"
        shutil.copytree(results, folder)
        for path in folder.glob("*.json"):  # a tool of that name, in samples, dictionaries and timelines
            text = path.read_text().replace('"posix"', json.dumps(HOSTILE))
            path.write_text(text.replace('"command": "io"', f'"command": {json.dumps(HOSTILE)}'))
        told = made.unknown(tmp_path, HOSTILE).document()
        told["machine"]["processor"] = HOSTILE
        write(folder, told, "odd.json")
        run(folder)
        told = Page((folder / "report.html").read_text())
        assert not told.open
        assert "script" not in {tag for tag, _ in told.elements}
        assert told.attributes("data-plot").count("bandwidth") == PLOTS["bandwidth"]
        assert not [name for _, attributes in told.elements for name in attributes if name.startswith("on")]
        text = "".join(told.text)
        assert text.count('<script>alert("1")</script>') > 12
        assert "$\\frac{1}{2}$" in text

    def test_unknown_command_is_shown(self, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(tmp_path)
        run(tmp_path)
        text = " ".join(Page((tmp_path / "report.html").read_text()).text)
        assert "interrupted" in text
        assert text.count("teleport") > 10
        assert '"deep"' in text

    def test_several_runs_of_a_command_are_shown(self, results: Path, tmp_path: Path) -> None:
        for name in ("offload", "offload-again"):
            shutil.copy(results / "offload.json", tmp_path / f"{name}.json")
        run(tmp_path)
        told = Page((tmp_path / "report.html").read_text())
        assert "offload (offload-again)" in told.text
        assert told.attributes("data-plot").count("timeline") == 2
        assert len(told.attributes("id")) == len(set(told.attributes("id")))

    def test_too_long_finding_is_named(self, tmp_path: Path) -> None:
        told = made.unknown(tmp_path, "teleport").document()
        told["findings"]["calls"] = [{"nested": [number]} for number in range(5000)]
        write(tmp_path, told)
        run(tmp_path)
        text = (tmp_path / "report.html").read_text()
        assert "Too long for this page, in odd.json: calls." in text
        assert len(text) < 100_000


class TestDamage:
    @pytest.mark.parametrize(
        ("told", "reason"),
        [
            ("{", "cannot be read as JSON"),
            ("[" * 100_000, "cannot be read as JSON"),
            ([1], "it has no schema"),
            ({"name": "package"}, "it has no schema"),
            ({"schema": 99}, "its schema is 99"),
            ({"schema": 1, "command": "io"}, "'interrupted' is None, not a bool"),
        ],
    )
    def test_foreign_file_is_refused(self, told: Any, reason: str, tmp_path: Path) -> None:
        said = run(write(tmp_path, told), status=1).output
        assert "Error: " in said
        assert "odd.json" in said
        assert reason in said
        assert not (tmp_path / "report.html").exists()

    @pytest.mark.parametrize(
        ("damage", "reason"),
        [
            (lambda told: told["exhibits"][0]["rows"].append(["one"]), "under 2 columns"),
            (lambda told: told["exhibits"][0]["rows"].append([{}, 1]), "in a cell"),
            (lambda told: told["exhibits"][0].pop("title"), "without title"),
            (lambda told: told["failures"][0].update(reason=7), "for 'reason'"),
            (lambda told: told["summaries"].append(3), "'summaries' has 3"),
            (lambda told: told["findings"].update(goals=[{"work": "save"}]), "KeyError: 'asked'"),
            (lambda told: told["findings"].update(learned=[{"work": "x"}]), "KeyError: 'context'"),
            (lambda told: told["findings"].update(runs=[{"run": 1}]), "odd.json"),
            (lambda told: told["findings"].update(simulated=[1]), "odd.json"),
        ],
    )
    def test_damaged_document_is_refused(self, damage: Callable[[Any], None], reason: str, tmp_path: Path) -> None:
        told = made.unknown(tmp_path, "teleport").document()
        damage(told)
        said = run(write(tmp_path, told), status=1).output
        assert "odd.json" in said
        assert reason in said

    def test_lone_surrogate_is_shown_escaped(self, tmp_path: Path) -> None:
        told = made.unknown(tmp_path, "teleport").document()
        told["notes"].append("half of a pair: \ud800")
        run(write(tmp_path, told))
        assert "half of a pair: \\ud800" in (tmp_path / "report.html").read_text()

    def test_empty_folder_is_refused(self, tmp_path: Path) -> None:
        assert "no document (*.json)" in run(tmp_path, status=1).output

    def test_unwritable_page_is_refused(self, tmp_path: Path) -> None:
        made.unknown(tmp_path, "teleport").write(tmp_path)
        path = tmp_path / "nodir" / "x.html"
        said = run(tmp_path, "-o", str(path), status=1).output
        assert f"Error: {path}: the page cannot be written (No such file or directory)" in said

    def test_without_matplotlib_names_the_package_to_install(
        self, results: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
        said = run(results, "-o", str(results.parent / "none.html"), status=1).output
        assert pip_install("bench") in said


class TestTables:
    @staticmethod
    def command(ends: BaseException | None) -> click.Command:
        shown = ResultTable("speeds", "Speeds", ("tool", "MB/s*"), [["uring", 1234.56], ["posix", None]])
        theirs = ResultTable("theirs", "Their speeds", ("tool", "MB/s*"), [["kvikio", 12.345]], PAPER, "Paper, table 2")

        @click.command(name="trial")
        @common
        def trial(run: CommandRun) -> None:
            def work(folder: Path) -> None:
                run.report.tables.append(shown)
                if ends is not None:
                    raise ends

            def tables() -> list[str]:
                run.report.tables.append(theirs)
                return ["first of all"]

            run.run(work, tables)

        return trial

    @pytest.mark.parametrize(
        ("ends", "status", "why"),
        [
            (None, 0, ""),
            (KeyboardInterrupt(), 130, "interrupted: what is shown"),
            (OSError(28, "No space left on device", "x.pt"), 1, "No space left on device: 'x.pt': what is shown"),
        ],
        ids=["done", "interrupted", "full"],
    )
    def test_tables_are_printed_and_written(
        self, ends: BaseException | None, status: int, why: str, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        arguments = ["--dir", str(tmp_path), "--out", str(out)]
        result = CliRunner().invoke(self.command(ends), arguments, catch_exceptions=False)
        assert result.exit_code == status
        assert why in result.stdout
        said = result.stdout
        assert said.index("first of all") < said.index("Speeds") < said.index("Their speeds")
        for expected in ("1,235", "12.345", "measured here", "from the paper; Paper, table 2"):
            assert expected in said
        told = json.loads((out / "trial.json").read_text())
        assert told["interrupted"] is (ends is not None)
        assert [one["rows"] for one in told["exhibits"]] == [
            [["uring", 1234.56], ["posix", None]],
            [["kvikio", 12.345]],
        ]

    @pytest.mark.parametrize("way", ["--json", "--out"])
    def test_nan_and_infinity_become_null(self, way: str, tmp_path: Path) -> None:
        @click.command(name="trial")
        @common
        def trial(run: CommandRun) -> None:
            run.report.tables.append(ResultTable("loss", "Loss", ("way", "loss*"), [["diverged", float("nan")]]))
            run.report.findings["ways"] = {"diverged": (float("inf"), 1.5)}
            run.run(lambda folder: None)

        arguments = ["--dir", str(tmp_path), way, *([str(tmp_path)] if way == "--out" else [])]
        said = CliRunner().invoke(trial, arguments, catch_exceptions=False).stdout
        text = said if way == "--json" else (tmp_path / "trial.json").read_text()
        told = json.loads(text, parse_constant=pytest.fail)
        assert told["exhibits"][0]["rows"] == [["diverged", None]]
        assert told["findings"] == {"ways": {"diverged": [None, 1.5]}}

    def test_empty_tables_are_not_shown(self, tmp_path: Path) -> None:
        rows: dict[str, list[list[Cell]]] = {"three": [["uring"]], "four": []}
        shown = [ResultTable("one", "one", ("tool",), [["posix"]]), ResultTable("two", "two", ("tool",), [])]

        @click.command(name="trial")
        @common
        def trial(run: CommandRun) -> None:
            run.report.tables += [ResultTable(title, title, ("tool",), own) for title, own in rows.items()]
            run.run(lambda folder: None, lambda: shown)

        out = tmp_path / "out"
        arguments = ["--dir", str(tmp_path), "--out", str(out)]
        said = CliRunner().invoke(trial, arguments, prog_name="trial", catch_exceptions=False).stdout
        run(out)
        page = (out / "report.html").read_text()
        assert [title in said for title in ("one", "two", *rows)] == [True, False, True, False]
        assert [f">{title} <" in page for title in rows] == [True, False]

    def test_goals_have_the_origin_of_their_figures(self) -> None:
        asked = [
            Goal("live", "all", "the oracle", 1.02, 1.0234, least=False),
            Goal("replayed", "all", "the oracle", 1.02, 1.5, least=False, origin=SIMULATED),
            Goal("replayed", "all", "the oracle", 1.02, 1.02, least=False, origin=SIMULATED),
        ]
        measured, simulated = findings_tables.tables({"goals": [goal.document() for goal in asked]})
        assert (measured.origin, simulated.origin) == (MEASURED, SIMULATED)
        assert [row[3:5] for row in measured.rows] == [["at most 1.020", "1.023"]]  # two decimals look met
        assert [row[3:] for row in simulated.rows] == [
            ["at most 1.02", "1.50", "x", "missed"],
            ["at most 1.02", "1.02", "x", "met"],
        ]
        with (console := Console(width=150)).capture() as page:
            for table in (measured, simulated):
                console.print(terminal.render(table))
        for expected in ("measured here", "simulated", "at most 1.020", "1.023"):
            assert expected in page.get()

    @pytest.mark.parametrize(
        ("cell", "text"),
        [
            *((None, "-"), ("as it is", "as it is"), (1234567, "1,234,567"), (1234.56, "1,235"), (999.7, "1,000")),
            *((0.0, "0"), (1.0, "1.00"), (0.05341, "0.0534"), (5.34e-5, "5.34e-5"), (-40.2, "-40.2"), (100.0, "100")),
            *((float("nan"), "-"), (float("inf"), "inf"), (True, "yes")),
        ],
    )
    def test_cells_round_numbers(self, cell: Any, text: str) -> None:
        assert cells.text(cell) == text


class Browser:
    """Chromium without a window."""

    def __init__(self, path: str, folder: Path) -> None:
        self._command = [path, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}"]
        self._command += ["--hide-scrollbars", "--force-device-scale-factor=1", "--virtual-time-budget=2000"]
        self._folder = folder

    def _run(self, page: Path, width: int, dark: bool, *arguments: str, height: int = 2000) -> str:
        scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
        command = [*self._command, scheme, f"--window-size={width},{height}", *arguments, page.as_uri()]
        child = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        assert child.returncode == 0, child.stderr
        return child.stdout

    def screenshot(self, page: Path, width: int, dark: bool, height: int = 2000) -> Any:
        """The screenshot as an array of (height, width, RGB), 0 to 1."""
        path = self._folder / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png"
        self._run(page, width, dark, f"--screenshot={path}", height=height)
        return image.imread(path)[:, :, :3]

    def measure(self, page: Path, width: int, expression: str) -> Any:
        """Evaluate JavaScript in a frame of that width (a window has a minimum width). Returns the value."""
        script = f"document.body.dataset.told = JSON.stringify((() => {{ {expression} }})())"
        inner = page.read_text().replace("</body>", f"<script>{script}</script></body>")
        frame = json.dumps(inner).replace("</", "<\\/")
        outer = self._folder / "measure.html"
        outer.write_text(
            f'<!DOCTYPE html><body><iframe style="width: {width}px; height: 900px; border: 0"></iframe><script>'
            f"const frame = document.querySelector('iframe'); frame.onload = () => document.body.dataset.told = "
            f"frame.contentDocument.body.dataset.told; frame.srcdoc = {frame};</script></body>"
        )
        found = re.search(r'<body data-told="([^"]*)"', self._run(outer, DESK, False, "--dump-dom"))
        assert found is not None
        return json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Chromium. CI must have one."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        in_ci = os.environ.get("CI", "").lower() in {"1", "true"}
        (pytest.fail if in_ci else pytest.skip)("no Chromium (chromium, chromium-browser or google-chrome) on PATH")
    return Browser(path, tmp_path_factory.mktemp("browser"))


_LOOK = """
const boxes = [...document.querySelectorAll('figure svg')].map(one => one.getBoundingClientRect());
const texts = [...document.querySelectorAll('figure.panel svg text')].map(one => one.getBoundingClientRect().height);
const wide = [...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth);
const answers = wide.filter(one => one.querySelector('tr')?.children.length < 3);
document.querySelectorAll('details').forEach(one => one.open = true);
return {
  page: document.documentElement.scrollWidth, window: innerWidth, plots: boxes.length,
  seen: boxes.filter(box => box.width > 200 && box.height > 60).length, smallest: Math.min(...texts),
  scrolling: wide.length, answers: answers.length,
  styled: getComputedStyle(document.querySelector('.scroll')).overflowX,
};
"""


_GOALS = """
document.querySelectorAll('details').forEach(one => one.open = true);
const verdicts = [...document.querySelectorAll('td.met, td.missed')];
const rows = verdicts.map(one => [one, one.closest('tr').children[4], one.closest('tr').children[0]]);
const boxes = rows.map(cells => cells.map(one => one.getBoundingClientRect()));
return {
  goals: rows.length, measured: rows.map(cells => cells[1].textContent),
  seen: boxes.filter(row => row.every(box => box.left >= 0 && box.right <= innerWidth && box.width > 10)).length,
  first: boxes.filter(([verdict, figure, work]) => verdict.left < figure.left && figure.bottom <= work.top).length,
};
"""


class TestBrowser:
    @pytest.mark.parametrize("width", [PHONE, DESK])
    def test_page_follows_the_colour_scheme(self, browser: Browser, page: Path, width: int) -> None:
        light, dark = (browser.screenshot(page, width, dark) for dark in (False, True))
        for pixels, low, high in ((light, 0.9, 1.0), (dark, 0.0, 0.15)):
            assert pixels.shape == (2000, width, 3)
            background = np.median(pixels.reshape(-1, 3), axis=0)
            assert ((low <= background) & (background <= high)).all()
            assert 0.02 < (np.abs(pixels - background).max(axis=2) > 0.3).mean() < 0.6  # text, but not everywhere

    @pytest.mark.parametrize("width", [PHONE, DESK])
    def test_goal_verdicts_are_visible_without_scrolling(self, browser: Browser, page: Path, width: int) -> None:
        told = browser.measure(page, width, _GOALS)
        assert told["goals"] == told["seen"] == len(told["measured"]) > 1
        assert "8.00" in told["measured"]
        assert told["first"] == (told["goals"] if width == PHONE else 0)  # on a phone a row begins with it

    @pytest.mark.parametrize("width", [PHONE, DESK])
    def test_page_fits_the_window(self, browser: Browser, page: Path, width: int) -> None:
        told = browser.measure(page, width, _LOOK)
        assert told["window"] == width
        assert told["page"] <= width
        assert told["plots"] == told["seen"] == sum(PLOTS.values())
        assert told["smallest"] >= 9  # pixels of a line of text in a plot
        assert told["styled"] == "auto"
        assert told["answers"] == 0  # no table of questions and answers needs scrolling
        if width == PHONE:
            assert told["scrolling"] > 0
