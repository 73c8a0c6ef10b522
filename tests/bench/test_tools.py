"""``fastio-bench tools``: traces, the oracle, rebuilds, the live comparison and the command."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result

import fastio
from fastio import dicts
from fastio.dicts import Context
from fastio_bench.harness import page_cache
from fastio_bench.harness.rounds import Failure
from fastio_bench.tools import live, rebuilt_dictionaries, rebuilt_tables, replays, tables, trace
from fastio_bench.tools.informed import informed
from fastio_bench.tools.options import tools
from fastio_bench.tools.rebuilt_dictionaries import Model, Rebuild, RebuildingStore, Training
from fastio_bench.tools.replaying import (
    Call,
    Timed,
    expected_over_oracle,
    judged,
    oracle_over_least,
    over_oracle,
    share_best,
    slowed,
    timed,
)
from fastio_bench.tools.trace import Row
from warm_python import WarmPopen

MIB = 1 << 20
SMALL = Model("transformer", "a transformer", 4, 2, 16, "Fastensor, table 13", "BERT")

# Fastensor, table 13: in how many of 1,184 rebuilds pt, npy and cpy were best, and what the first rebuild said.
BERT = (
    (53, 45, 1139, 0, "npy"), (3020, 239, 945, 0, "npy"), (4070, 71, 1113, 0, "npy"), (7480, 890, 294, 0, "npy"),
    (14700, 148, 1036, 0, "npy"), (29300, 379, 805, 0, "npy"), (187500, 849, 335, 0, "pt"), (659200, 0, 1184, 0, "npy"),
    (1406300, 7, 1176, 1, "npy"), (2250000, 25, 910, 249, "pt"), (2636800, 0, 68, 1116, "cpy"),
    (5625000, 0, 21, 1163, "cpy"), (9000000, 0, 10, 1174, "cpy"), (22500000, 0, 10, 1174, "cpy"),
)  # fmt: skip


def rebuild(best: str, live: str = "pt") -> Rebuild:
    written = {tool: 1.0 if tool == best else 2.0 for tool in ("pt", "npy", "cpy")}
    return Rebuild(written, dict.fromkeys(written, 1.0), live)


def papers_rebuilds() -> dict[int, list[Rebuild]]:
    found = {}
    for nbytes, pt, npy, cpy, first in BERT:
        bests = ["pt"] * pt + ["npy"] * npy + ["cpy"] * cpy
        bests.remove(first)
        found[nbytes] = [rebuild(best) for best in (first, *bests)]
    return found


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    """A small trace in which tool a is always the best."""
    chance = random.Random(0)
    path = tmp_path / "small.csv"
    rows = [
        Row(work, nbytes, {tool: nbytes / 1e9 * factor + 1e-3 for tool, factor in (("a", 1.0), ("b", 2.0))})
        for work in ("pt save", "pt warm load")
        for nbytes in (chance.randrange(1 << 12, 1 << 24) for _ in range(240))
    ]
    path.write_text(trace.text(rows, ["made up"]))
    return path


class TestTraces:
    def test_trace_round_trips(self, tmp_path: Path) -> None:
        rows = [
            Row("pt durable save", 5000, {"uring": 0.001, "posix": 0.000123}),
            Row("npy cold load", 1 << 28, {"dali": 1.5, "posix": 0.25}),
        ]
        path = tmp_path / "trace.csv"
        path.write_text(trace.text(rows, ["one", "two"]))
        assert path.read_text().startswith("# one\n# two\nwork,nbytes,uring,posix,dali\n")
        for back, row in zip(trace.read(path), rows, strict=True):
            assert (back.work, back.nbytes) == (row.work, row.nbytes)
            assert back.seconds == pytest.approx(row.seconds)

    @pytest.mark.parametrize(
        ("told", "said"),
        [
            (b"", "no trace: got the columns of no line; expected columns work, nbytes and one for each tool"),
            (b"a,b\n1,2\n", "no trace: got the columns a, b; expected columns work"),
            (b"work,nbytes\npt save,5\n", "no trace: got the columns work, nbytes; expected"),
            (b"work,nbytes,a,a\npt save,5,1,1\n", "no trace: got the columns work, nbytes, a, a; expected"),
            (b"work,nbytes,a\n", "no trace: got no line below the columns"),
            (b"\x93NUMPY\x01\x00\xff\xfe", "no trace: got what is no text ('utf-8'"),
            (b"work,nbytes,a\npt save,5\n", ", line 2: got 2 cells; expected 3: work, nbytes, a"),
            (b"work,nbytes,a\npt save,5,1,1\n", ", line 2: got 4 cells; expected 3"),
            (b"# by hand\nwork,nbytes,a\n\npt nap,5,1\n", ", line 4: got work 'pt nap'; expected one of pt, saf"),
            (b"work,nbytes,a\nxls save,5,1\n", ", line 2: got work 'xls save'; expected one of pt, saf"),
            (b"work,nbytes,a\npt save,abc,1\n", ", line 2: got nbytes 'abc'; expected a number of bytes, 1 or more"),
            (b"work,nbytes,a\npt save,0,1\n", ", line 2: got nbytes '0'; expected"),
            (b"work,nbytes,a\npt save,-5,1\n", ", line 2: got nbytes '-5'; expected"),
            (b"work,nbytes,a\npt save,,1\n", ", line 2: got nbytes ''; expected"),
            (b"work,nbytes,a\npt save,5,fast\n", ", line 2: got 'fast' for a; expected microseconds above 0"),
            (b"work,nbytes,a\npt save,5,nan\n", ", line 2: got 'nan' for a; expected microseconds"),
            (b"work,nbytes,a\npt save,5,0\n", ", line 2: got '0' for a; expected microseconds"),
            (b"work,nbytes,a,b\npt save,5,,\n", ", line 2: got no time; expected that of one tool or more"),
            (
                b"work,nbytes,a,b\npt save,5,1,\nnpy save,5,,1\npt save,5,,1\n",
                ", line 4: got times of b; expected one tool in all lines of pt save",
            ),
        ],
    )
    def test_invalid_trace_is_refused(self, told: bytes, said: str, tmp_path: Path) -> None:
        path = tmp_path / "other.csv"
        path.write_bytes(told)
        with pytest.raises(ValueError, match=re.escape(f"{path}{'' if said.startswith(',') else ': '}{said}")):
            trace.read(path)

    def test_works_have_fastios_contexts(self) -> None:
        assert trace.context("pt durable save", 1) == Context("save", "pt", "cpu", durable=True)
        assert trace.context("npy warm load", 1) == Context("load", "npy", "cpu", resident=True)
        with pytest.raises(ValueError, match="pt nap"):
            trace.context("pt nap", 1)

    def test_shipped_trace_has_all_tools_at_all_works(self) -> None:
        works = trace.by_work(trace.read(trace.SHIPPED))
        assert {f"pt {work}" for work in trace.WORKS} <= set(works)
        for work, rows in works.items():
            assert {"uring", "posix", "torch", "numpy"} <= set(rows[0].seconds), work
            in_order = [tool for tool in live.tools(work) if tool in rows[0].seconds]  # one may not be installed here
            assert [tool for tool in rows[0].seconds if tool in in_order] == in_order
            assert min(row.nbytes for row in rows) < 8 << 10
            assert max(row.nbytes for row in rows) > 200 << 20


class TestOracle:
    def test_oracle_uses_the_least_median_near_the_size(self) -> None:
        rows = [Row("pt save", 1 << 20, {"a": 1.0, "b": 2.0}) for _ in range(40)]
        rows[7] = Row("pt save", 1 << 20, {"a": 9.0, "b": 2.0})  # bad luck, which the oracle has too
        calls = judged(timed(rows), ["b"] * 40)
        assert {call.oracle for call in calls} == {"a"}
        assert calls[7].oracle_seconds == 9.0
        assert calls[7].oracle_expected == pytest.approx(1.0)
        assert over_oracle(calls) == pytest.approx(80 / 48)
        assert expected_over_oracle(calls) == pytest.approx(2.0)
        assert oracle_over_least(calls) == pytest.approx(48 / 41)

    def test_oracle_depends_on_the_size(self) -> None:
        sizes = [1 << 12] * 60 + [1 << 26] * 60
        rows = [Row("pt save", size, {"a": 1e-3 + size * 4e-9, "b": 2e-3 + size * 1e-9}) for size in sizes]
        calls = judged(timed(rows), ["a"] * 120)
        assert [call.oracle for call in calls] == ["a"] * 60 + ["b"] * 60
        assert share_best(calls) == 0.5

    def test_tool_within_two_percent_counts_as_best(self) -> None:
        times = {"a": 1.0, "b": 1.019, "c": 1.021}
        calls = judged([Timed(1, times, times)] * 3, ["a", "b", "c"])
        assert share_best(calls) == pytest.approx(2 / 3)
        assert math.isnan(share_best([]))

    def test_slowed_scales_one_tool_from_a_call_on(self) -> None:
        calls = slowed([Timed(1, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0})] * 3, "a", 3.0, 1)
        assert [call.seconds["a"] for call in calls] == [1.0, 3.0, 3.0]
        assert [call.oracle for call in judged(calls, "bbb")] == ["a", "b", "b"]

    def test_live_calls_are_judged_by_their_own_times(self) -> None:
        rows = [Row("pt save", 1 << 20, {"a": 1.0, "b": 3.0, "auto": 1.5}) for _ in range(10)]
        rows += [Row("pt warm load", 1 << 20, {"a": 1.0, "b": 3.0, "auto": 3.0}) for _ in range(10)]
        (saves, loads, together), left_out = replays.lived(rows, "auto", ["a"] * 10 + ["b"] * 10)
        assert left_out == []
        assert (saves.raw, loads.raw, together.raw) == pytest.approx((1.5, 3.0, 2.25))
        assert (saves.total, loads.total, together.total) == pytest.approx((1.0, 3.0, 2.0))
        assert saves.alone == pytest.approx({"a": 1.0, "b": 3.0})
        assert replays.lived([], "auto", []) == ([], [])

    def test_each_work_has_its_own_warm_up(self) -> None:
        """As in a replay: works that alternate are learned separately."""
        seconds = {"a": 1.0, "b": 3.0, "auto": 1.0}
        rows = [Row(work, 1 << 20, seconds) for _ in range(105) for work in ("pt save", "pt warm load")]
        chosen = ["b", "a"] * 100 + ["a", "b"] * 5
        (saves, loads, together), _ = replays.lived(rows, "auto", chosen)
        assert (saves.share, loads.share, together.share) == (1.0, 0.0, 0.5)
        (early, *_), _ = replays.lived(rows[:200], "auto", chosen[:200])
        assert early.share is None

    def test_calls_without_comparison_are_noted_and_left_out(self) -> None:
        """Failed tools take no further part; auto continues with another tool, or with torch."""
        both, one, alone = {"a": 1.0, "b": 3.0, "auto": 1.5}, {"b": 3.0, "auto": 3.0}, {"auto": 4.0}
        rows = [Row("pt save", 1 << 20, seconds) for seconds in (both, both, one, one, alone)]
        rows += [Row("pt warm load", 1 << 20, alone)] * 3
        (saves,), left_out = replays.lived(rows, "auto", ["b", "a", "b", "b", *["torch"] * 4])
        assert (saves.work, saves.calls, saves.alone) == ("pt save", 3, pytest.approx({"b": 1.0}))
        assert saves.raw == pytest.approx((1.5 + 3.0 + 3.0) / 9)
        assert [said.partition(":")[0] for said in left_out] == ["pt save", "pt warm load"]
        assert "2 of 5 calls are held against nothing" in left_out[0]
        assert "3 of 3 calls are held against nothing: every tool but auto had failed" in left_out[1]

    def test_tuner_learns_a_trace_and_a_change(self, traced: Path) -> None:
        rows = trace.read(traced)
        *works, together = replays.replays(rows, [], orders=2)
        assert [line.work for line in works] == ["pt save", "pt warm load"]
        assert together.calls == sum(line.calls for line in works) == 480
        for line in works:
            assert 1.0 <= line.low <= line.total <= line.high < line.alone["b"]
            assert line.share > 0.9
            assert line.alone["a"] == pytest.approx(1.0)
        for change in replays.recoveries(rows, [], orders=2):
            assert change.tool == "a"
            assert 1.0 <= change.told <= change.after < 1.1  # staying with it costs about 1.5

    def test_informed_learner_needs_no_trials(self, traced: Path) -> None:
        for line in replays.bounds(trace.read(traced), orders=2):
            assert line.total < 1.02  # the first call is a guess
            assert line.alike is not None
            assert line.share is not None
            assert 0.99 < line.share <= line.alike

    def test_informed_learner_works_on_live_calls(self) -> None:
        rows = [Row("pt save", 1000, {"auto": 5.0, "b": 2.0, "a": 1.0})] * 40
        (line,) = replays.lived_bounds([*rows, Row("pt save", 1000, {"auto": 5.0, "a": 1.0, "c": 1.0})], "auto")
        assert (line.calls, line.total, line.alone) == (41, 1.0, {"a": 1.0})
        assert replays.lived_bounds([Row("pt save", 1000, {"auto": 5.0})], "auto") == []

    def test_busy_phases_do_not_mislead_the_informed_learner(self) -> None:
        """b takes 10 % longer than a; the machine is up to 20 times slower in every other call."""
        calls = [Timed(1000, {"b": 1.1 * slow, "a": slow}, {"b": 1.1, "a": 1.0}) for slow in (1.0, 20.0, 1.0, 7.0) * 10]
        assert informed(calls) == ["b", *"a" * 39]
        assert informed([]) == []


class TestSpread:
    def test_shares_reproduce_the_papers_figures(self) -> None:
        """79.59, 88.52 and 16.01 % (section 5.2.3) are shares of cases, not of time."""
        found = {share.way: share for share in rebuilt_tables.shares(papers_rebuilds())}
        assert 100 * found["first"].cases == pytest.approx(79.59, abs=0.01)
        assert 100 * found["best"].cases == pytest.approx(88.52, abs=0.01)
        assert 100 * found["pt alone"].cases == pytest.approx(16.01, abs=0.01)
        assert found["live tuner"].cases == found["pt alone"].cases
        assert found["pt alone"].time == pytest.approx(2 / (2 * 0.1600507 + 3 * (1 - 0.1600507)), rel=1e-4)

    def test_tool_chosen_by_the_other_half_has_no_luck(self) -> None:
        """a is the faster one in the first rebuild by luck: alone it is the best, and by the other half it costs."""
        took = {"a": 1.0, "b": 9.0}, {"a": 3.0, "b": 2.0}
        luck, usual = (Rebuild(seconds, seconds, "a") for seconds in took)
        found = {share.way: share for share in rebuilt_tables.shares({100: [luck, usual]})}
        assert found["a alone"].time == pytest.approx(6 / 8)
        assert found[rebuilt_tables.ONE_TOOL].time == pytest.approx(6 / 24)
        assert rebuilt_tables.ONE_TOOL not in {share.way for share in rebuilt_tables.shares({100: [usual]})}

    def test_spread_table_has_a_row_per_size(self) -> None:
        lines = rebuilt_tables.sizes({100: [rebuild("npy"), rebuild("pt"), rebuild("pt")]})
        assert lines == [rebuilt_tables.Size(100, 3, {"npy": 1, "pt": 2}, "npy", "pt")]
        assert rebuilt_tables.shares({}) == []

    def test_store_uses_every_tool_in_turn_and_returns_the_bytes(self, tmp_path: Path) -> None:
        among = rebuilt_dictionaries.tools()
        assert {"uring", "posix", "torch", "numpy"} <= set(among)
        store = RebuildingStore(tmp_path, among)
        blobs = [torch.full((8192,), index, dtype=torch.uint8) for index in range(3 * (len(among) + 1))]
        for index, blob in enumerate(blobs):
            store.write(index, blob.data_ptr(), blob.nbytes)
        assert store.complete() == {}  # nothing has been read back yet
        for index, blob in reversed(list(enumerate(blobs))):
            back = torch.zeros_like(blob)
            store.read(index, back.data_ptr(), back.nbytes)
            assert torch.equal(back, blob)
            assert store.is_done(index)
            store.free(index)
        ((nbytes, rebuilds),) = store.complete().items()
        assert (nbytes, len(rebuilds)) == (8192, 3)
        for one in rebuilds:
            assert set(one.written) == set(one.read) == set(one.sums()) == set(among)
            assert min(one.written.values()) > 0
            assert one.live in among
        store.close()

    def test_training_rebuilds_continuously(self, tmp_path: Path) -> None:
        training, passed = Training(SMALL), []
        training.run(tmp_path, 0.1, passed.append)
        assert sum(passed) == pytest.approx(0.1)
        assert training.steps >= 1
        assert training.found
        shown = tables.spread(training)
        assert all(len(row) == len(shown.columns) for row in shown.rows)
        for row in shown.rows:
            assert sum(int(count) for count in row[2:-2]) == row[1]  # each rebuild has one best tool
        assert not list(tmp_path.iterdir())


class TestLive:
    def test_comparison_times_every_tool_and_auto(self, tmp_path: Path) -> None:
        works = [f"pt {work}" for work in trace.WORKS]
        comparison = live.Comparison(works, [4096, 300_000], auto=True)
        with live.fresh_dictionaries(tmp_path):
            outcomes = list(comparison.run(tmp_path))
        rows = [outcome for outcome in outcomes if isinstance(outcome, Row)]
        if len(rows) == len(outcomes):  # on tmpfs no file is cold
            assert [(row.work, row.nbytes) for row in rows] == [(w, n) for n in (4096, 300_000) for w in works]
            assert all(tuple(row.seconds) == (*live.tools(row.work), "auto") for row in rows)
        assert len(comparison.chosen) == sum("auto" in row.seconds for row in rows)
        assert set(comparison.chosen) <= set(live.tools(works[0]))
        assert not list(tmp_path.glob("of-all-tools*"))
        assert len(comparison.weights()) == len(rows)

    def test_failed_tool_is_reported_and_others_continue(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(live, "tools", lambda work: ("posix", "no such tool"))
        outcomes = list(live.Comparison(["pt save"], [4096, 8192], auto=False).run(tmp_path))
        (failure,) = (outcome for outcome in outcomes if isinstance(outcome, Failure))
        assert failure.tool == "no such tool"
        assert "no such tool" in failure.reason
        assert [set(outcome.seconds) for outcome in outcomes if isinstance(outcome, Row)] == [{"posix"}] * 2

    def test_dropped_row_drops_autos_choice(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """If a page stays in the page cache there is no row, although auto may have run already."""
        bring, brought = live._bring, list[Path]()

        def at_times(path: Path, is_cold: bool) -> None:
            brought.append(path)
            if len(brought) % 5 == 0:  # the second contestant of each second row
                raise page_cache.ResidencyError("a page stays")
            bring(path, False)

        monkeypatch.setattr(live, "_bring", at_times)
        monkeypatch.setattr(live, "tools", lambda work: ("posix", "uring"))
        comparison = live.Comparison(["pt cold load"], [4096] * 16, auto=True)
        with live.fresh_dictionaries(tmp_path):
            rows = [outcome for outcome in comparison.run(tmp_path) if isinstance(outcome, Row)]
        assert len(rows) == 8
        assert len(comparison.chosen) == len(rows)

    def test_auto_starts_unlearned_and_keeps_the_users_dictionaries(self, tmp_path: Path) -> None:
        tensor = torch.zeros(9 * MIB, dtype=torch.uint8)
        path = tmp_path / "tensor.pt"
        before = os.environ.get("FASTIO_DICTIONARY_DIR")
        for _ in range(4):
            fastio.save(tensor, path, policy="auto")
        known = {entry.tool: entry.samples for entry in fastio.explain(tensor.nbytes, op="save").entries}
        with live.fresh_dictionaries(tmp_path):
            assert not any(entry.samples for entry in fastio.explain(tensor.nbytes, op="save").entries)
            fastio.save(tensor, path, policy="auto")
        assert os.environ.get("FASTIO_DICTIONARY_DIR") == before
        # Their order may be another: what was kept has a process's first call before it again.
        assert {entry.tool: entry.samples for entry in fastio.explain(tensor.nbytes, op="save").entries} == known
        dicts.forget()

    def test_sizes_cover_all_octaves_large_ones_less_often(self) -> None:
        sizes = live.sizes(1600)
        octaves = [int(math.log2(size / live.SMALLEST)) for size in sizes]
        counts = [octaves.count(octave) for octave in range(16)]
        assert min(counts[:12]) > 90
        assert counts[11] > counts[12] > counts[13] > counts[14] > counts[15] > 5
        assert live.sizes(1600) == sizes


def invoke(*arguments: object, status: int = 0) -> Result:
    result = CliRunner().invoke(tools, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result


class TestCommand:
    def test_command_prints_tables_and_goals(self, tmp_path: Path, traced: Path) -> None:
        work, out = tmp_path / "work", tmp_path / "out"
        work.mkdir()
        small = ("--quick", "--calls", 16, "--seconds", 0, "--trace", traced)
        result = invoke(*small, "--dir", work, "--out", out)
        assert "about" in result.stderr
        assert "GiB of disk" in result.stderr
        told = json.loads((out / "tools-quick.json").read_text())
        assert {path.stem for path in out.glob("*.png")} == {
            f"tools-quick-{name}" for name in ("spread", "reach", "oracle")
        }
        shown = {table["name"]: table for table in told["exhibits"]}
        names = [
            "spread-transformer",
            "spread-vit",
            "reach",
            "reach-paper",
            "replayed",
            "bounds",
            "slower",
            "live",
            "live-bounds",
        ]
        assert list(shown) == names
        assert shown["reach-paper"]["origin"] == "from the paper"
        assert {row[0] for row in shown["reach"]["rows"]} >= {"first", "best", "live tuner", "torch alone"}
        printed = " ".join(result.stdout.split())
        for table in shown.values():
            assert table["source"]
            assert table["title"] in printed
            assert all(len(row) == len(table["columns"]) for row in table["rows"])
        assert shown["live"]["rows"][-1][:2] == ["all together", 16]
        assert len(told["findings"]["compared"]) == 16
        assert all(row["chosen"] in row["seconds"] for row in told["findings"]["compared"])
        rebuilds = told["findings"]["rebuilds"]
        for model in ("transformer", "vit"):
            rows = shown[f"spread-{model}"]["rows"]
            counts = {int(nbytes): len(found) for nbytes, found in rebuilds[model].items()}
            assert counts == {round(row[0] * 1e6): row[1] for row in rows}
            assert all(set(one["written"]) == set(one["read"]) for found in rebuilds[model].values() for one in found)
            assert "2 layers, width" in shown[f"spread-{model}"]["note"]
        goals = {(goal["work"], goal["against"]) for goal in told["findings"]["goals"]}
        assert {where for where, _ in goals} == {"replayed", "live"}
        assert ("live", "the oracle's total time, as timed: with choosing, and with luck") in goals
        assert not {against for where, against in goals if where == "live" and "best tool" in against}  # all warm-up
        assert ("replayed", "calls on the best tool, within 2 %") in goals
        assert ("replayed", "calls on the best tool, or one that cannot be told from it") in goals
        assert not list(work.iterdir())

    def test_short_trace_has_no_goal_without_a_figure(self, tmp_path: Path) -> None:
        path, work = tmp_path / "short.csv", tmp_path / "work"
        work.mkdir()
        path.write_text(trace.text([Row("pt save", 1 << size, {"a": 1.0, "b": 2.0}) for size in range(12, 24)], []))
        more = ("--calls", 8, "--seconds", 0, "--trace", path, "--dir", work)
        told = json.loads(invoke("--quick", "--json", *more).stdout, parse_constant=pytest.fail)  # of NaN, and the like
        (slower,) = (table for table in told["exhibits"] if table["name"] == "slower")
        assert slower["rows"] == [["pt save", "a", None, None, None]]
        replayed = [goal["against"] for goal in told["findings"]["goals"] if goal["work"] == "replayed"]
        assert replayed == ["the oracle's total time, by what the tools chosen usually take"]

    def test_sizes_that_do_not_fit_are_left_out_with_a_note(
        self, tmp_path: Path, traced: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 40, 0, 24 * MIB))
        arguments = ("--quick", "--calls", 16, "--seconds", 0, "--trace", traced, "--json", "--dir", tmp_path)
        told = json.loads(invoke(*arguments).stdout)
        cut = "; ".join(told["notes"])
        assert "tools are compared up to 8 MiB instead of 32 MiB, for want of memory or disk" in cut
        assert "a vision transformer: batch 1 instead of 8" in cut
        assert max(row["nbytes"] for row in told["findings"]["compared"]) <= 8 * MIB
        assert [model["batch"] for model in told["settings"]["models"]] == [1, 1]

    def test_command_records_a_trace(self, tmp_path: Path) -> None:
        work, path = tmp_path / "work", tmp_path / "trace.csv"
        work.mkdir()
        told = json.loads(invoke("--quick", "--calls", 12, "--record", path, "--json", "--dir", work).stdout)
        rows = trace.read(path)
        assert len(rows) == 12
        assert set(trace.by_work(rows)) >= {f"pt {work}" for work in trace.WORKS}
        assert path.read_text().startswith("# RECORDED")
        assert any("12 lines" in note for note in told["notes"])
        assert not list(work.iterdir())

    def test_notes_if_every_tool_but_auto_fails(
        self, tmp_path: Path, traced: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(live, "tools", lambda work: ("no such tool",))
        arguments = ("--quick", "--calls", 8, "--seconds", 0, "--trace", traced, "--json", "--dir", tmp_path)
        told = json.loads(invoke(*arguments).stdout)
        assert {failure["tool"] for failure in told["failures"]} >= {"no such tool"}
        assert "live, pt save: 2 of 2 calls are held against nothing" in "; ".join(told["notes"])
        assert "live" not in {table["name"] for table in told["exhibits"]}

    @pytest.mark.parametrize(
        ("told", "said"), [("a,b\n", "no trace"), ("work,nbytes,a\npt nap,5,1\n", "line 2: got work 'pt nap'")]
    )
    def test_invalid_trace_is_a_usage_error(self, told: str, said: str, tmp_path: Path) -> None:
        path = tmp_path / "other.csv"
        path.write_text(told)
        assert said in invoke("--trace", path, "--dir", tmp_path, status=2).output

    @pytest.mark.parametrize("seconds", ["nan", "inf"])
    def test_invalid_seconds_are_a_usage_error(self, seconds: str, tmp_path: Path) -> None:
        assert "not a number of seconds" in invoke("--seconds", seconds, "--dir", tmp_path, status=2).output

    @pytest.mark.slow
    def test_ctrl_c_keeps_samples_and_leaves_no_files(self, tmp_path: Path, traced: Path) -> None:
        work = tmp_path / "work"
        work.mkdir()
        command = [sys.executable, "-c", "from fastio_bench.tools.options import tools; tools()"]
        more = ["--quick", "--calls", 40_000, "--seconds", 0, "--trace", traced, "--dir", work, "--json"]
        child = WarmPopen([*command, *map(str, more)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        pause = threading.Event()
        while child.poll() is None and not list(work.glob("*/of-all-tools.pt")):
            pause.wait(0.01)
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate()
        assert child.returncode == 130, complaint
        told = json.loads(said)
        assert told["interrupted"]
        assert [table["name"] for table in told["exhibits"]][:2] == ["spread-transformer", "spread-vit"]
        assert told["findings"]["goals"]
        assert not list(work.iterdir())

    @pytest.mark.slow
    def test_ctrl_c_during_training_keeps_its_rebuilds(self, tmp_path: Path, traced: Path) -> None:
        training = Training(SMALL)

        def interrupt(passed: float) -> None:
            if training.steps == 3:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            training.run(tmp_path, 100.0, interrupt)
        assert training.found
        assert not list(tmp_path.glob("*.pt"))


def test_judged_fills_every_field_of_a_call() -> None:
    call = judged([Timed(5, {"a": 1.0, "b": 2.0}, {"a": 1.0, "b": 2.0})], ["b"], [7.0])[0]
    assert call == Call(5, "b", False, 7.0, 2.0, "a", 1.0, 1.0, 1.0)
