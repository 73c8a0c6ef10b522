"""The picture of the README, and the colours of tools."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.run_record import Report
from fastio_bench.machine import disk_limit
from fastio_bench.report import picture, tool_colors


@pytest.fixture
def results(tmp_path: Path) -> Path:
    report = Report("peers", tmp_path, {})
    figures = {"torch": 1.0, "fastio": 0.25, "safetensors": 0.5, disk_limit.TOOL: 0.2}
    report.samples = [Sample("cold load", "bert", tool, 0, 10**9, s, 0.1) for tool, s in figures.items()]
    report.samples += [Sample("warm load", "bert", tool, 0, 10**9, s / 10, 0.1) for tool, s in figures.items()]
    report.write(tmp_path / "results")
    return tmp_path / "results"


def test_draws_measured_figures_for_light_and_dark_pages(results: Path, tmp_path: Path) -> None:
    picture.main([str(results), str(tmp_path / "images")])
    light, dark = ((tmp_path / "images" / f"bandwidth-{mode}.svg").read_text() for mode in ("light", "dark"))
    for text, colors in ((light, tool_colors.LIGHT), (dark, tool_colors.DARK)):
        ElementTree.fromstring(text)
        assert "4,000 (4.0x torch)" in text
        assert "stroke-dasharray" in text
        assert colors[tool_colors.number("fastio")] in text
        assert "safetensors maps the pages" in text
        assert "20,000" not in text  # the bar of what was mapped would dwarf the others
        assert re.search(rf"fastio-bench peers · \d{{4}}-\d\d-\d\d · {re.escape(platform.node())}<", text)
    picture.main([str(results), str(tmp_path / "again")])
    assert (tmp_path / "again" / "bandwidth-light.svg").read_text() == light


def test_no_figure_is_crossed_by_the_line_of_the_limit(tmp_path: Path) -> None:
    report = Report("peers", tmp_path, {})
    for share in range(50, 100, 3):
        figures = {"torch": 5.0, "fastio": 1.0, disk_limit.TOOL: share / 100}
        report.samples = [Sample("cold load", "bert", tool, 0, 10**9, s, 0.1) for tool, s in figures.items()]
        report.write(tmp_path / "results")
        picture.main([str(tmp_path / "results"), str(tmp_path / "images")])
        drawn = (tmp_path / "images" / "bandwidth-light.svg").read_text()
        begin = float(re.findall(r'<text x="([\d.]+)"[^>]*>1,000 \(5.0x torch\)', drawn)[0])
        line = float(re.findall(r'<path d="M([\d.]+) [^>]*dasharray', drawn)[-1])
        assert not begin < line < begin + 6.5 * len("1,000 (5.0x torch)"), share


def test_without_a_run_of_peers_says_what_to_do(tmp_path: Path) -> None:
    Report("io", tmp_path, {}).write(tmp_path / "results")
    with pytest.raises(SystemExit, match=r"no run of `fastio-bench peers`.*measure first"):
        picture.main([str(tmp_path / "results"), str(tmp_path / "images")])


def test_colors_are_those_of_the_page() -> None:
    css = Path(picture.__file__).with_name("page.css").read_text()
    found = [(int(number), color) for number, color in re.findall(r"--series-(\d+): (#[0-9a-f]{6});", css)]
    count = len(tool_colors.LIGHT)
    assert found == [*enumerate(tool_colors.LIGHT), *enumerate(tool_colors.DARK)]
    assert len(tool_colors.DARK) == count


def test_a_mode_of_a_tool_has_its_color() -> None:
    assert tool_colors.number("torch, mmap") == tool_colors.number("torch")
    assert len({tool_colors.number(tool) for tool in ("fastio", "torch", "safetensors", "numpy", "DCP")}) == 5
    assert tool_colors.number("tortoise") == tool_colors.number("tortoise")
