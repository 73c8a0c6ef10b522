"""``fastio-bench io``: its round budget, its forecast, and its tables in the paper's layout."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib.figure import Figure

import controllers
from benching import MIB, FakeClock, invoke, on_disk
from fastio.nvme import Controller, Obstacle
from fastio.volumes import Volume
from fastio_bench.harness import command_run, room, stats
from fastio_bench.harness.round_budget import Cost, Line, RoundBudget, rounds_within, through
from fastio_bench.harness.rounds import Failure, Measured, Sample
from fastio_bench.harness.time_budget import TimeBudget
from fastio_bench.io import command, namespaces, sweep, tables
from fastio_bench.io import cost_probe as probing
from fastio_bench.machine import disk_limit
from fastio_bench.peers import catalogue
from fastio_bench.report import plots
from fastio_bench.workloads import objects


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use small sizes, in the probe too."""
    monkeypatch.setattr(probing, "BATCHES", (1, 2))
    monkeypatch.setattr(sweep, "QUICK_BATCHES", (2, 1))


class TestRoundBudget:
    def test_line_goes_through_both_points(self) -> None:
        line = through((10, 3.0), (30, 5.0))
        assert (line.fixed, line.per_byte) == (2.0, 0.1)
        assert line.at(100) == pytest.approx(12.0)

    def test_noise_gives_no_negative_term(self) -> None:
        assert through((10, 5.0), (30, 3.0)) == Line(5.0, 0.0)
        assert through((10, 1.0), (20, 9.0)).fixed == 0.0

    def test_equal_sizes_give_a_constant_line(self) -> None:
        assert through((10, 2.0), (10, 2.0)) == Line(2.0, 0.0)

    def test_runs_all_rounds_if_there_is_time(self) -> None:
        assert rounds_within([Cost(1, 10), Cost(1, 1)], 57, 5) == [5, 5]

    def test_longest_size_loses_rounds_first_down_to_three(self) -> None:
        costs = [Cost(0, 10), Cost(0, 4), Cost(0, 1)]
        assert rounds_within(costs, 74, 5) == [4, 5, 5]
        assert rounds_within(costs, 47, 5) == [3, 3, 5]
        assert rounds_within(costs, 45, 5) == [3, 3, 3]
        assert rounds_within(costs, 30, 5) == [1, 3, 3]
        assert rounds_within(costs, 15, 5) == [1, 1, 1]

    def test_leaves_out_the_costliest_sizes_that_do_not_fit(self) -> None:
        assert rounds_within([Cost(5, 100), Cost(1, 1)], 10, 5) == [0, 5]
        assert rounds_within([Cost(5, 100), Cost(9, 9)], 1, 5) == [0, 0]
        assert rounds_within([Cost(5, 100)], -1, 5) == [0]

    def test_plan_adapts_to_real_seconds(self) -> None:
        budget = RoundBudget({"large": Cost(0, 20), "small": Cost(0, 10)}, 150, 5)
        assert budget.plan() == {"large": 5, "small": 5}
        assert budget.total() == 150
        budget.done("large", 5, 120.0)
        assert budget.scale == pytest.approx(1.2)
        assert budget.plan() == {"small": 2}
        budget.done("small", 2, 24.0)
        assert budget.given == {"large": 5, "small": 2}

    def test_infinite_time_runs_the_requested_rounds(self) -> None:
        assert RoundBudget({"large": Cost(0, 1e6)}, math.inf, 7).plan() == {"large": 7}


class TestForecast:
    def test_announces_time_disk_and_reduced_rounds(self) -> None:
        sizes = [objects.one_tensor(batch) for batch in (512, 1)]
        budget = RoundBudget({sizes[0].name: Cost(30, 100), sizes[1].name: Cost(1, 10)}, 400, 5)
        said = command.announcement(budget, sizes, 6 << 30)
        assert said == "about 6 minutes, at most 6.0 GiB of disk, 5 rounds; to end in time: 1,568 MiB 3 rounds"
        budget = RoundBudget({sizes[0].name: Cost(30, 1000), sizes[1].name: Cost(1, 10)}, 55, 5)
        assert command.announcement(budget, sizes, 1 << 29).endswith("to end in time: 1,568 MiB left out")

    @pytest.mark.parametrize(
        ("seconds", "disk", "said"),
        [
            (0.2, 9 << 20, "about 1 seconds, at most 9 MiB of disk"),
            (89, 1 << 29, "about 89 seconds, at most 0.5 GiB of disk"),
            (90, 10 << 30, "about 2 minutes, at most 10.0 GiB of disk"),
        ],
    )
    def test_forecast_is_at_least_one_second(self, seconds: float, disk: int, said: str) -> None:
        assert command_run.forecast(seconds, disk) == said

    def test_defaults_fit_into_ten_gibibytes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a large machine, with the tools on the CPU."""
        monkeypatch.setattr(room, "available_memory", lambda: 1 << 40)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 44, 0, 1 << 44))
        tools = [catalogue.find(f"{catalogue.TOOL}{name}") for name in ("torch", "numpy", "posix", "uring")]
        assert sweep.files(tools) == 4  # torch's, numpy's, fastio's own, and the one being saved
        kept, cut = sweep.fitting(sweep.BATCHES, tmp_path, sweep.files(tools))
        assert (len(kept), cut) == (10, "")
        assert max(workload.nbytes for workload in kept) * sweep.files(tools) <= sweep.MOST_DISK
        kept, cut = sweep.fitting(sweep.BATCHES, tmp_path, 8)
        assert cut == "left out, for want of memory or disk: 1,568 MiB"

    def test_probe_estimates_every_size(self, disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastio_bench.harness.fresh_process.measure", lambda *_: Measured(1.0, 0.0))
        sizes = [objects.one_tensor(batch) for batch in (512, 1)]
        costs = probing.costs(disk, [catalogue.find(f"{catalogue.TOOL}posix")], "cpu", sizes)
        assert set(costs) == {size.name for size in sizes}
        assert all(cost.round > 0 and cost.setup > 0 for cost in costs.values())
        assert not list(disk.iterdir())

    def test_probe_separates_setup_from_rounds(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Neither size includes the other's time, nor that of the first process."""
        clock = FakeClock()

        def took(once: float, per_byte: float, nbytes: int) -> float:
            return once + per_byte * nbytes

        class KnownSweep(sweep.Sweep):
            def run(self) -> Iterator[Sample]:
                (workload,) = self.workloads
                self.tell("making it", 0)
                clock.now += took(0.1, 1e-9, workload.nbytes)
                for work in sweep.WORKS:
                    self.tell(work, 0)
                    clock.now += took(0.5, 3e-9, workload.nbytes)
                    self.tell(work, 1)
                    if work == sweep.CACHED:  # the file to load is saved then
                        clock.now += took(0.2, 2e-9, workload.nbytes)
                yield from ()

        def first_process() -> float:
            clock.now += 30
            return 0.03

        monkeypatch.setattr(probing, "time", SimpleNamespace(monotonic=clock.wall))
        monkeypatch.setattr(sweep, "Sweep", KnownSweep)
        monkeypatch.setattr("fastio_bench.harness.fresh_process.import_seconds", first_process)
        tools = [catalogue.find(f"{catalogue.TOOL}{name}") for name in ("torch", "numpy", "posix", "uring")]
        sizes = [objects.one_tensor(batch) for batch in (512, 64, 1)]
        found = probing.costs(tmp_path, tools, "cpu", sizes)
        for size in sizes:
            assert found[size.name].setup == pytest.approx(
                took(0.1, 1e-9, size.nbytes) + 3 * took(0.2, 2e-9, size.nbytes)
            )
            assert found[size.name].round == pytest.approx(4.5 * len(sweep.WORKS) * took(0.5, 3e-9, size.nbytes))

    @pytest.mark.parametrize(
        ("largest", "sizes"), [(512, ["3.0625", "196"]), (16, ["3.0625", "49"]), (1, ["3.0625"]), (None, [])]
    )
    def test_probe_skips_sizes_that_do_not_fit(self, largest: int | None, sizes: list[str]) -> None:
        workloads = [] if largest is None else [objects.one_tensor(batch) for batch in (largest, 1)]
        assert [workload.name for workload in probing.sizes(workloads)] == [f"tensor-{size}" for size in sizes]

    def test_probe_writes_little_on_a_small_disk(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastio_bench.harness.fresh_process.measure", lambda *_: Measured(1.0, 0.0))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 0, 24_000_000))
        made, place = [], sweep.place

        def noted(thing: objects.Object, device: str) -> objects.Object:
            made.append(sum(tensor.nbytes for tensor in objects.tensors(thing).values()))
            return place(thing, device)

        monkeypatch.setattr(sweep, "place", noted)
        result = invoke("io", "--quick", "--rounds", "1", "--tool", "posix", "--json", "--dir", str(disk))
        probing, announced = filter(None, result.stderr.splitlines())
        assert probing == "probing how long it will take: 6 MiB of files, at most"
        assert "at most 6 MiB of disk, 1 rounds" in announced
        assert made == [objects.one_tensor(1).nbytes] * 2  # probed, then measured
        told = json.loads(result.stdout)
        assert len(told["samples"]) == len(sweep.WORKS)
        assert "left out, for want of memory or disk: 196, 12.25 MiB" in told["notes"]


class TestExhibits:
    @staticmethod
    def samples(work: str, tool: str, nbytes: int, seconds: float, gpu: float | None = None) -> Sample:
        name = f"tensor-{nbytes / MIB:g}"
        return Sample(work, name, tool, 0, nbytes, seconds, seconds / 2, gpu_busy=gpu)

    def told(self, gpu: float | None = None) -> dict[str, list[list[object]]]:
        sizes = (tables.BATCH_4, 4 * tables.BATCH_4)
        samples = [
            self.samples(work, tool, nbytes, nbytes / speed / 1e6, gpu)
            for work, speed in zip(sweep.WORKS, (100, 200, 300, 400), strict=True)
            for nbytes in sizes
            for tool in ("torch", "uring")
            if not (tool == "uring" and work == sweep.WARM)
        ]
        failed = [Failure(sweep.WARM, "tensor-12.25", "uring", 0, "no")]
        shown = tables.measured(stats.summarise(samples), failed)
        assert len({table.name for table in shown}) == len(shown)
        assert all(len(row) == len(table.columns) for table in shown for row in table.rows)
        return {table.name: [list(row) for row in table.rows] for table in shown}

    def test_tables_have_sizes_by_tools_largest_first(self) -> None:
        told = self.told()
        assert told["io-durable-write"] == [[size, *[pytest.approx(100)] * 2, 1] for size in ("49", "12.25")]
        assert told["io-cold-read"][1] == ["12.25", pytest.approx(300), pytest.approx(300), 1]

    def test_tables_mark_failures_and_leave_absent_tools_empty(self) -> None:
        assert self.told()["io-warm-read"] == [
            ["49", pytest.approx(400), None, 1],
            ["12.25", pytest.approx(400), "failed", 1],
        ]

    def test_each_row_has_its_number_of_rounds(self) -> None:
        whole = [replace(self.samples(sweep.WARM, "torch", MIB, 1.0), round=number) for number in range(3)]
        cut = [replace(sample, tool="uring") for sample in whole[:2]]  # Ctrl-C came before its third
        (shown, *_) = tables.measured(stats.summarise([*whole, *cut]), [])
        assert shown.columns[-1] == "rounds*"
        assert shown.rows[0][-1] == "2-3"
        assert "where it is one, what that round took" in shown.note

    def test_size_at_which_every_tool_failed_is_shown(self) -> None:
        names = [objects.one_tensor(batch).name for batch in (1, 64)]
        samples = [self.samples(sweep.DURABLE, tool, objects.find(names[0]).nbytes, 1.0) for tool in ("torch", "uring")]
        failed = [Failure(sweep.DURABLE, names[1], tool, 0, "no space left") for tool in ("torch", "uring")]
        shown = {table.name: table.rows for table in tables.measured(stats.summarise(samples), failed)}
        assert shown["io-durable-write"][0] == ["196", "failed", "failed", None]
        assert [row[:2] for row in shown["io-ioef"]] == [[sweep.DURABLE, "196"], [sweep.DURABLE, "3.0625"]]
        assert "io-cold-read" not in shown  # interrupted before it
        assert tables.measured([], []) == []

    def test_batch_4_table_has_the_layout_of_table_5(self) -> None:
        rows = self.told()["io-batch-4-cpu"]
        cold_and_written = [pytest.approx(figure) for figure in (0.5, 300, 600, 0.5, 100, 200)]
        assert rows[0] == ["torch", pytest.approx(0.5), pytest.approx(400), pytest.approx(800), *cold_and_written]
        assert rows[1] == ["uring", "failed", "failed", "failed", *cold_and_written]

    def test_batch_4_table_omits_absent_tools(self) -> None:
        own = self.samples(sweep.COLD, "torch", tables.BATCH_4, 1.0)
        limited = self.samples(sweep.COLD, disk_limit.TOOL, 16 * tables.BATCH_4, 1.0)
        found = {table.name: table.rows for table in tables.measured(stats.summarise([own, limited]), [])}
        assert [row[0] for row in found["io-batch-4-cpu"]] == ["torch"]
        assert [row[0] for row in found["io-cold-read"]] == ["196", "12.25"]

    def test_table_6_needs_a_gpu(self) -> None:
        assert "io-batch-4-gpu" not in self.told()
        rows = self.told(gpu=0.25)["io-batch-4-gpu"]
        assert rows[0][1:4] == [0.25, pytest.approx(400), pytest.approx(1600)]


class TestPlots:
    @pytest.mark.parametrize("batches", [sweep.BATCHES, sweep.QUICK_BATCHES, sweep.BATCHES[:7]], ids=len)
    def test_plot_labels_do_not_overlap(
        self, batches: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        drawn, save = list[Figure](), Figure.savefig

        def keep(figure: Figure, *arguments: Any, **options: Any) -> None:
            drawn.append(figure)
            save(figure, *arguments, **options)

        monkeypatch.setattr(Figure, "savefig", keep)
        sizes = [objects.one_tensor(batch).nbytes for batch in batches]
        samples = [
            TestExhibits.samples(sweep.WARM, tool, nbytes, 1.0) for nbytes in sizes for tool in ("torch", "uring")
        ]
        (path,) = plots.draw(tmp_path / "io", stats.summarise(samples))
        assert path.stat().st_size
        labels = drawn[0].axes[0].get_xticklabels()
        assert [label.get_text() for label in labels] == [objects.one_tensor(batch).name for batch in batches]
        for label, following in pairwise(labels):
            own, other = label.get_window_extent(), following.get_window_extent()
            angle = math.radians(label.get_rotation())
            line = label.get_fontsize() * drawn[0].dpi / 72
            assert own.x1 < other.x0 or (other.x1 - own.x1) * math.sin(angle) > line

    def test_modes_of_a_tool_look_different(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        drawn = list[Figure]()
        monkeypatch.setattr(plots, "save", lambda figure, path: drawn.append(figure))
        tools = ("torch", "torch, no CRC", "torch, huge pages", "fastio", "fastio, unverified")
        samples = [TestExhibits.samples(sweep.WARM, tool, 4096, 1.0) for tool in tools]
        plots.draw(tmp_path / "io", stats.summarise(samples))
        bars = [bar.patches[0] for bar in drawn[0].axes[0].containers]
        assert len({(bar.get_facecolor(), bar.get_hatch()) for bar in bars}) == len(tools)


class TestCommand:
    def test_command_measures_every_size_tool_and_work(
        self, disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sweep, "_LEAST_LIMITED", 5 * MIB)
        out, work = disk / "out", disk / "work"
        work.mkdir()
        monkeypatch.setattr(sweep, "QUICK_BATCHES", (2,))
        monkeypatch.setattr(probing, "costs", lambda *given: {workload.name: Cost(1, 1) for workload in given[-1]})
        result = invoke(
            *("io", "--quick", "--rounds", "2", "--tool", "posix", "--tool", "uring"),
            *("--dir", str(work), "--out", str(out)),
        )
        for expected in ("durable write", "warm read", "posix", "IOef", "Cold read, MB/s", "Fastensor, table 3"):
            assert expected in result.stdout
        assert " of disk, 2 rounds" in result.stderr
        assert not list(work.iterdir())
        told = json.loads((out / "io-quick.json").read_text())
        assert told["failures"] == []
        per_task = [[sample["tool"] for sample in told["samples"] if sample["work"] == kind] for kind in sweep.WORKS]
        both = ["uring", "posix"]
        assert per_task == [
            [*both, disk_limit.TOOL] * 2,
            both * 2,
            [*both, disk_limit.TOOL] * 2,
            both * 2,
        ]  # interleaved
        assert set(told["findings"]["forecast"]) == {"seconds", "disk_bytes", "rounds"}
        assert told["settings"]["tools"]["uring"] == 'policy="uring", format="pt"'
        assert "io-ioef" in {table["name"] for table in told["exhibits"]}

    def test_a_volume_on_a_namespace_has_speeds_and_other_drivers_counts(
        self, disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        namespace = controllers.on_file(disk / "namespace", monkeypatch)
        Volume.create(controllers.WHERE).close()
        (disk / "work").mkdir()
        arguments = ("--quick", "--rounds", "1", "--tool", "posix", "--json", "--dir", str(disk / "work"))
        told = json.loads(invoke("io", *arguments, "--volume", controllers.WHERE).stdout)
        assert told["failures"] == []
        own = [one for one in told["samples"] if one["tool"] == controllers.WHERE]
        assert sorted({(one["work"], one["way"]) for one in own}) == [
            ("cold read", "vfio, namespace"),
            ("durable write", "vfio, namespace"),
        ]
        (table,) = (table for table in told["exhibits"] if table["name"] == "io-namespaces")
        assert table["origin"] == "simulated"
        speeds = {(row[0], row[1]): row[-1] for row in table["rows"]}
        assert set(speeds) == {(driver, "host") for driver in namespaces.DRIVERS} | {
            ("vfio", "device"),
            ("spdk", "device"),
        }
        assert speeds["vfio", "host"] == f"in the tables of speeds: {controllers.WHERE}"
        assert all(speeds.values())
        assert {tuple(row[2:-1]) for row in table["rows"] if row[0] == "vfio"} == {
            (8.0, 0.25, 0.0, 1.0, 0.0, 0.0),
            (8.0, 0.25, 0.0, 0.0, 0.0, 1.0),
        }
        with Volume.open(controllers.WHERE) as volume:
            assert volume.ls() == []
        namespace.write_bytes(bytes(1 << 20))
        told = json.loads(invoke("io", *arguments, "--volume", controllers.WHERE).stdout)
        assert {(one["tool"], "no volume" in one["reason"]) for one in told["failures"]} == {(controllers.WHERE, True)}

    def test_why_a_driver_has_no_speed(self) -> None:
        def speeds(*volumes: str, found: Any = ()) -> list[object]:
            return [row[-1] for row in namespaces.table(volumes, found).rows if row[:2] != ["spdk", "host"]][:2]

        controller = Controller("nvme0", "0000:03:00.0", "pcie", "nvme")
        told = [Obstacle("vfio", "the kernel's driver nvme has it", ())]
        assert speeds() == ["there is no NVMe controller here"] * 2
        assert speeds(found=[(controller, told)]) == [
            "no volume was named, as in --volume nvme:...",
            "nvme0: the kernel's driver nvme has it",
        ]
        assert speeds("nvme:/dev/ng0n1", found=[(controller, told)])[0] == "in the tables of speeds: nvme:/dev/ng0n1"

    def test_volumes_and_files_are_not_confused(self, disk: Path) -> None:
        said = invoke("io", "--volume", "file:/disk/volume", "--dir", str(disk), status=2).output
        assert "expected a volume on a namespace, as vfio:0000:03:00.0" in " ".join(said.split())
        said = invoke("io", "--tool", "vfio", "--dir", str(disk), status=2).output
        assert "vfio moves no files: name a volume, as in --volume vfio:..." in " ".join(said.split())

    def test_notes_sizes_left_out_for_lack_of_time(
        self, disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "costs", lambda *given: {workload.name: Cost(1, 1) for workload in given[-1]})
        monkeypatch.setattr(command, "QUICK_SECONDS", 0.0)
        result = invoke("io", "--quick", "--json", "--tool", "posix", "--dir", str(disk))
        told = json.loads(result.stdout)
        assert told["samples"] == []
        assert any("6.125 MiB left out, 3.0625 MiB left out" in note for note in told["notes"])

    def test_a_size_that_takes_longer_than_planned_loses_rounds(
        self, disk: Path, quick: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(probing, "costs", lambda *given: {own.name: Cost(0, 1e-6) for own in given[-1]})
        monkeypatch.setattr(TimeBudget, "another", lambda budget, done: done < 2)
        told = json.loads(invoke("io", "--quick", "--json", "--tool", "posix", "--dir", str(disk)).stdout)
        assert {own["rounds"] for own in told["summaries"]} == {2}
        assert any("6.125 MiB 2 rounds, 3.0625 MiB 2 rounds" in note for note in told["notes"])

    def test_unknown_tool_is_refused(self, disk: Path) -> None:
        said = invoke("io", "--tool", "teleport", "--tool", "posix", "--dir", str(disk), status=2).output
        assert "no tool teleport; there are uring (" in said
        said = invoke("io", "--device", "meta", "--dir", str(disk), status=2).output
        assert "no such tool here for meta" in said
        assert "posix (cpu)" in said

    def test_sizes_that_do_not_fit_are_left_out_with_a_note(self, disk: Path) -> None:
        kept, cut = sweep.fitting((1, 1 << 20), disk)
        assert [workload.name for workload in kept] == ["tensor-3.0625"]
        assert cut == "left out, for want of memory or disk: 3,211,264 MiB"
