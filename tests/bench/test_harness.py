"""The harness: rounds, summaries, workloads, page cache, reserve, timing, fresh processes and goals."""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import fastio
import warm_python
from benching import MIB, FakeClock, on_disk
from fastio_bench.harness import fresh_process, page_cache, stats, timing, warmup
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Contestant, Failure, Measured, Sample, Task, interleave
from fastio_bench.harness.run_record import Report, interruptible
from fastio_bench.harness.time_budget import TimeBudget
from fastio_bench.io import sweep
from fastio_bench.io import tables as io_tables
from fastio_bench.machine import disk_limit, memory_limit
from fastio_bench.model import tables as model_tables
from fastio_bench.peers import compare, goals
from fastio_bench.report import summary_tables, terminal
from fastio_bench.store import command
from fastio_bench.workloads import objects, shapes

TASK = Task("save", "object", 2_000_000_000)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


def run(clock: FakeClock, rounds: int, *contestants: Contestant) -> list[Sample | Failure]:
    return list(interleave(TASK, contestants, rounds, clock))


def failing_at(clock: FakeClock, call: int) -> Callable[[], str]:
    """A tool that takes a second and fails at the given call."""
    calls, works = iter(range(1, call + 1)), clock.mover([1.0] * call)

    def run() -> str:
        if next(calls) == call:
            raise OSError("no space left")
        return works()

    return run


class TestRounds:
    def test_summary_has_the_known_speed(self) -> None:
        clock = FakeClock()
        samples = run(clock, 3, Contestant("torch", clock.mover([4.0, 1.0, 2.0], 0.25), clock.idle, clock.idle))
        (summary,) = stats.summarise(s for s in samples if isinstance(s, Sample))
        assert summary.seconds == 2.0
        assert summary.bandwidth == 1e9
        assert summary.best_bandwidth == 2e9
        assert summary.cpu_per_gb == 0.25
        assert summary.ratio == 1.0

    def test_tables_and_json_have_the_known_speed(self, tmp_path: Path) -> None:
        clock, report = FakeClock(), Report("io", tmp_path, {})
        task = Task(sweep.COLD, "tensor-x", 3_000_000_000)
        for seconds, tool in (([2.0, 2.0, 9.0], "steady"), ([1.5, 1.0, 1.0], "quick")):
            for _ in report.take(interleave(task, [Contestant(tool, clock.mover(seconds, 0.5))], 3, clock)):
                pass
        told = json.loads(json.dumps(report.document()))
        assert [(s["tool"], s["bandwidth"], s["cpu_per_gb"]) for s in told["summaries"]] == [
            ("steady", 1.5e9, 1 / 3),
            ("quick", 3e9, 0.5 / 3),
        ]
        assert [sample["seconds"] for sample in told["samples"]] == [2.0, 2.0, 9.0, 1.5, 1.0, 1.0]
        summaries = stats.summarise(report.samples)
        shown = {table.name: table for table in io_tables.measured(summaries, report.failures)}
        assert shown["io-cold-read"].columns == ["size MiB*", "steady*", "quick*", "rounds*"]
        assert shown["io-cold-read"].rows[0][1:] == [1500.0, 3000.0, 3]
        busy = {row[0]: row[2:] for row in shown["io-cpu-utilisation"].rows}
        assert busy[sweep.COLD] == [0.5, 0.5, 3]
        efficiency = {row[0]: row[2:] for row in shown["io-ioef"].rows}
        assert efficiency[sweep.COLD] == [3000.0, 6000.0, 3]
        with (console := Console(width=150)).capture() as page:
            console.print(terminal.render(summary_tables.matrix("", summaries)))
        assert "1,500" in page.get()
        assert "3,000" in page.get()

    def test_runs_contestants_in_interleaved_rounds(self) -> None:
        clock = FakeClock()
        calls: list[str] = []

        def note(name: str) -> str:
            calls.append(name)
            return ""

        def contestant(name: str) -> Contestant:
            return Contestant(
                name,
                lambda: note(name),
                lambda: note(f"before {name}"),
                lambda: note(f"after {name}"),
            )

        outcomes = run(clock, 2, contestant("A"), contestant("B"))
        assert calls == ["before A", "A", "after A", "before B", "B", "after B"] * 2
        assert [(o.tool, o.round) for o in outcomes] == [("A", 0), ("B", 0), ("A", 1), ("B", 1)]

    def test_leaves_out_whole_rounds_that_do_not_fit(self) -> None:
        clock = FakeClock()
        budget = TimeBudget(100.0, clock.wall)
        done: list[list[tuple[str, int]]] = []
        for share, times in ((0.3, [6.0] * 4), (0.5, [60.0] * 4), (1.0, [1.0] * 4), (1.0, [1.0] * 4)):
            budget.begin(share)
            contestants = [Contestant("A", clock.mover(times)), Contestant("B", clock.mover(times))]
            outcomes = interleave(TASK, contestants, 4, clock, another=budget.another)
            done.append([(outcome.tool, outcome.round) for outcome in outcomes])
        both = [[("A", number), ("B", number)] for number in range(4)]
        assert done == [both[0] + both[1], both[0], both[0], both[0]]  # 24 of 30 s; 120 of 38 s; nothing is left

    def test_ratio_is_of_medians_and_spread_is_of_rounds(self) -> None:
        clock = FakeClock()
        samples = run(
            clock,
            3,
            Contestant("torch", clock.mover([8.0, 4.0, 6.0])),
            Contestant("fast", clock.mover([1.0, 2.0, 4.0])),
        )
        torch_, fast = stats.summarise(s for s in samples if isinstance(s, Sample))
        assert (torch_.ratio, torch_.ratio_low, torch_.ratio_high) == (1.0, 1.0, 1.0)
        assert (fast.ratio, fast.ratio_low, fast.ratio_high) == (6.0 / 2.0, 1.5, 8.0)

    def test_ratio_uses_only_rounds_of_both(self) -> None:
        clock = FakeClock()
        torch_ = run(clock, 3, Contestant("torch", clock.mover([8.0, 2.0, 2.0])))
        fast = run(clock, 1, Contestant("fast", clock.mover([1.0])))
        (summary,) = [found for found in stats.summarise([*torch_, *fast]) if found.tool == "fast"]
        assert (summary.ratio, summary.ratio_low, summary.ratio_high) == (8.0, 8.0, 8.0)

    def test_failed_tool_is_reported_and_others_continue(self) -> None:
        clock, calls = FakeClock(), []

        def fail() -> str:
            calls.append("tried")
            raise OSError("disk on fire")

        outcomes = run(
            clock,
            3,
            Contestant("bad", fail, finish=lambda: calls.append("cleaned")),
            Contestant("torch", clock.mover([1.0, 1.0, 1.0])),
        )
        failures = [o for o in outcomes if isinstance(o, Failure)]
        assert [(f.tool, f.round, f.reason) for f in failures] == [("bad", 0, "OSError: disk on fire")]
        assert len(outcomes) == 1 + 3
        assert calls == ["tried", "cleaned"]

    def test_failed_tool_is_in_every_table_and_in_json(self, tmp_path: Path) -> None:
        clock, report = FakeClock(), Report("io", tmp_path, {})
        contestants = [Contestant("torch", clock.mover([1.0] * 3)), Contestant("breaks", failing_at(clock, 2))]
        task = Task(sweep.DURABLE, "tensor-x", 10**9)
        for _ in report.take(interleave(task, contestants, 3, clock)):
            pass
        summaries = stats.summarise(report.samples)
        shown = {table.name: table for table in io_tables.measured(summaries, report.failures)}
        assert shown["io-durable-write"].rows[0][1:] == [1000.0, "failed", 3]
        (beside,) = summary_tables.sides(summaries, report.failures)
        assert beside.rows == [["torch", "1,000 (1.00)"], ["breaks", "failed"]]
        assert command.table(summaries, report.failures).rows[-1][2:4] == ["breaks", "failed"]
        (failure,) = json.loads(json.dumps(report.document()))["failures"]
        assert (failure["tool"], failure["round"], failure["reason"]) == ("breaks", 1, "OSError: no space left")
        assert summary_tables.failures(report.failures).rows == [
            ["breaks", 1, sweep.DURABLE, "tensor-x", "OSError: no space left"]
        ]

    def test_tables_show_failed_tools_but_not_refused_ones(self) -> None:
        clock, task = FakeClock(), Task(compare.CACHED, "toy", 10**9)
        outcomes = [*interleave(task, [Contestant("torch", clock.mover([1.0]))], 1, clock)]
        outcomes += interleave(task, [Contestant("breaks", failing_at(clock, 1))], 1, clock)
        outcomes += interleave(replace(task, work=compare.WARM), [Contestant("odd", failing_at(clock, 1))], 1, clock)
        outcomes.append(Failure(compare.CACHED, "toy", "absent", 0, "not installed", refused=True))
        summaries = stats.summarise(one for one in outcomes if isinstance(one, Sample))
        failures = [one for one in outcomes if isinstance(one, Failure)]
        (beside,) = summary_tables.sides(summaries, failures)
        assert beside.columns == ("tool", "save*", "warm load*")
        assert beside.rows == [
            ["torch", "1,000 (1.00)", None],
            ["breaks", "failed", None],
            ["odd", None, "failed"],
        ]
        saved, loaded = model_tables.tables(summaries, failures)
        assert saved.columns[3:] == ("torch s*", "breaks s*")
        assert [row[2:] for row in saved.rows] == [[1, 1.0, "failed"]]
        assert [row[2:] for row in loaded.rows] == [[None, "failed"]]

    def test_uses_the_times_of_a_contestant_that_measures_itself(self) -> None:
        clock = FakeClock()
        own = Measured(2.0, 0.5, 77, "way", 0.25)
        (sample,) = run(clock, 1, Contestant("fresh", lambda: own, clock.idle))
        assert isinstance(sample, Sample)
        assert (sample.seconds, sample.cpu_seconds, sample.extra_bytes, sample.way) == (2.0, 0.5, 77, "way")
        assert sample.gpu_busy == 0.25

    def test_disturbed_call_is_timed_again_unless_long_or_hardly_slower(self, tmp_path: Path) -> None:
        clock, report = FakeClock(), Report("io", tmp_path, {})

        def hit(seconds: list[float], taken: list[int]) -> Callable[[], str]:
            works, amounts = clock.mover(seconds), iter(taken)

            def run() -> str:
                clock.taken += next(amounts)
                return works()

            return run

        def slow_preparation() -> None:
            clock.taken += 512 * MIB

        contestants = [
            Contestant("once", hit([1.75, 1.0, 0.5], [MIB, 0, 0]), slow_preparation, slow_preparation),
            Contestant("always", hit([1.75, 1.5, 1.25, 1.125], [MIB, MIB, 2 * MIB, 0])),
            Contestant("long", hit([2.5, 2.5], [MIB, MIB])),
            Contestant("hardly", hit([1.0, 1.0625], [0, MIB])),
            Contestant("felt", hit([1.0, 1.125, 1.0], [0, MIB, 0])),
            Contestant("itself", lambda: next(own)),
        ]
        own = iter([Measured(1.5, 0.0, taken_back=MIB), Measured(4.0, 0.0), Measured(3.0, 0.0)])
        for _ in report.take(interleave(TASK, contestants, 2, clock)):
            pass
        assert [(s.tool, s.round, s.seconds, s.again, s.taken_back) for s in report.samples] == [
            ("once", 0, 1.0, 1, 0),
            ("always", 0, 1.25, 2, 2 * MIB),
            ("long", 0, 2.5, 0, MIB),
            ("hardly", 0, 1.0, 0, 0),
            ("felt", 0, 1.0, 0, 0),
            ("itself", 0, 4.0, 1, 0),
            ("once", 1, 0.5, 0, 0),
            ("always", 1, 1.125, 0, 0),
            ("long", 1, 2.5, 0, MIB),
            ("hardly", 1, 1.0625, 0, MIB),
            ("felt", 1, 1.0, 1, 0),
            ("itself", 1, 3.0, 0, 0),
        ]
        report.tell_again()
        (note,) = report.notes
        assert note.startswith("5 large calls were timed again")

    def test_small_call_is_timed_once_even_if_disturbed(self) -> None:
        clock = FakeClock()

        def hit() -> str:
            clock.taken += MIB
            return ""

        (sample,) = interleave(Task("save", "object", MIB), [Contestant("torch", hit)], 1, clock)
        assert isinstance(sample, Sample)
        assert (sample.again, sample.taken_back) == (0, MIB)

    def test_interrupt_keeps_samples(self, tmp_path: Path) -> None:
        clock = FakeClock()

        def interrupt() -> str:
            raise KeyboardInterrupt

        report = Report("io", tmp_path, {})
        contestants = [Contestant("torch", clock.mover([1.0])), Contestant("slow", interrupt)]
        with interruptible(report):
            for _ in report.take(interleave(TASK, contestants, 1, clock)):
                pass
        assert report.interrupted
        assert [sample.tool for sample in report.samples] == ["torch"]


class TestShapes:
    @pytest.mark.parametrize(
        ("layers", "hidden", "tensors", "parameters"), [(24, 1024, 391, 335_141_888), (12, 768, 199, 109_482_240)]
    )
    def test_bert_has_its_published_number_of_parameters(
        self, layers: int, hidden: int, tensors: int, parameters: int
    ) -> None:
        """The counts that the published bert-large-uncased and bert-base-uncased report of themselves."""
        found = shapes.bert(layers, hidden)
        assert len(found) == tensors
        assert sum(map(shapes.fp32_bytes, found.values())) == 4 * parameters

    def test_one_tensor_has_the_papers_sizes(self) -> None:
        sizes = [shapes.fp32_bytes(shapes.feature_map(batch)) / MIB for batch in (1, 4, 16, 64, 256, 512)]
        assert sizes == [3.0625, 12.25, 49, 196, 784, 1568]

    @pytest.mark.parametrize("workload", [objects.one_tensor(1), objects.small_tensors()], ids=lambda w: w.name)
    def test_workload_has_its_stated_bytes(self, workload: objects.Workload) -> None:
        tensors = objects.tensors(workload.make())
        assert sum(tensor.nbytes for tensor in tensors.values()) == workload.nbytes
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
        assert objects.find(workload.name).nbytes == workload.nbytes

    def test_fingerprint_changes_with_every_difference(self) -> None:
        thing = {"a": torch.arange(8.0), "b": torch.zeros(2, 4)}
        mark = objects.fingerprint(thing)
        assert objects.fingerprint(dict(reversed(thing.items()))) == mark
        for other in (
            {"a": torch.arange(8.0), "b": torch.zeros(4, 2)},
            {"a": torch.arange(8.0), "c": torch.zeros(2, 4)},
            {"a": torch.arange(8.0), "b": torch.zeros(2, 4, dtype=torch.int32)},
            {"a": torch.arange(8.0), "b": torch.full((2, 4), 1e-40)},
            {"a": torch.zeros(2, 4), "b": torch.arange(8.0)},
        ):
            assert objects.fingerprint(other) != mark


class TestCold:
    def test_drop_and_warm_change_residency(self, disk: Path) -> None:
        path = disk / "file"
        path.write_bytes(os.urandom(3 * MIB + 5))
        assert page_cache.resident(path) > 0
        page_cache.drop(path)
        assert page_cache.resident(path) == 0
        page_cache.warm(path)
        assert page_cache.resident(path) >= page_cache.WARM

    def test_residency_of_a_folder_covers_all_files(self, disk: Path) -> None:
        folder = disk / "checkpoint"
        folder.mkdir()
        for name in "ab":
            (folder / name).write_bytes(os.urandom(MIB))
        page_cache.drop(folder)
        page_cache.warm(folder / "a")
        assert page_cache.resident(folder) == pytest.approx(0.5, abs=0.01)

    def test_drop_raises_if_pages_stay(self) -> None:
        path = Path("/dev/shm") / f"fastio-bench-test-{os.getpid()}"
        path.write_bytes(bytes(MIB))
        try:
            with pytest.raises(page_cache.ResidencyError, match="stays in the page cache"):
                page_cache.drop(path)
        finally:
            path.unlink()

    def test_touch_reads_every_page_of_a_mapped_object_and_no_other(self, disk: Path) -> None:
        """Checked by the page cache: with random access the kernel reads no page ahead."""
        page, path = mmap.PAGESIZE, disk / "mapped"
        path.write_bytes(bytes(64 * page))
        page_cache.drop(path)
        with open(path, "rb") as stream:
            mapping = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        mapping.madvise(mmap.MADV_RANDOM)
        whole = torch.frombuffer(mapping, dtype=torch.uint8)
        across, one = whole[3 * page - 96 : 3 * page + 104], whole[10 * page : 11 * page]
        begins_within, next_to_it = whole[20 * page + 7 : 22 * page + 8], whole[23 * page - 1 : 23 * page]
        assert page_cache.resident(path) == 0
        objects.touch({"a": begins_within, "b": across, "c": one, "d": next_to_it, "e": whole[:0]})
        assert page_cache.resident(path) * 64 == 2 + 1 + 3

    def test_check_raises_unless_residency_matches(self, disk: Path) -> None:
        path = disk / "file"
        path.write_bytes(os.urandom(MIB))
        page_cache.drop(path)
        page_cache.check(path, "cold")
        with pytest.raises(page_cache.ResidencyError, match="would not be warm"):
            page_cache.check(path, "warm")
        page_cache.warm(path)
        page_cache.check(path, "warm")
        with pytest.raises(page_cache.ResidencyError, match="would not be cold"):
            page_cache.check(path, "cold")

    def test_reserve_holds_memory_and_releases_it(self) -> None:
        peak = timing.Peak()
        with Reserve(64 * MIB) as reserve:
            reserve.hold()
            assert 60 * MIB <= (peak.beyond(0) or 0) < 80 * MIB
            reserve.release()
            after = timing.Peak()
            reserve.hold()
            assert (after.beyond(0) or 0) >= 60 * MIB
        assert (timing.Peak().beyond(0) or 0) < 8 * MIB

    def test_reserve_releases_at_least_the_bytes_and_takes_them_back(self) -> None:
        def resident() -> float:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            return pages * os.sysconf("SC_PAGE_SIZE") / MIB - before

        before = 0.0
        before = resident()
        with Reserve(200 * MIB) as reserve:
            assert resident() == pytest.approx(200, abs=8)
            reserve.release(100 * MIB)
            assert resident() <= 108, "as much as was asked for, and what the processors keep of it"
            reserve.release(MIB)
            assert resident() <= 44, "64 MiB at least"
            reserve.hold(64 * MIB)
            assert resident() == pytest.approx(136, abs=8), "the rest is in use"
            reserve.hold()
            reserve.hold()
            assert resident() == pytest.approx(200, abs=8)
        assert resident() == pytest.approx(0, abs=8)

    def test_warms_up_each_work_until_its_dictionary_settles(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = {"durable save": True, "save": True, "cold load": True, "warm load": False}
        monkeypatch.setattr(warmup, "settled", lambda folder, workload: answers)
        workload, rounds = objects.one_tensor(1), list[None]()
        with Reserve(2 * workload.nbytes) as reserve, fastio.record() as transfers:
            warmup.warm_up(workload, workload.make(), disk / "file", reserve, 12, lambda: rounds.append(None))
        assert len(rounds) == 12
        assert [transfer.op for transfer in transfers].count("save") == 2 * 8
        assert [transfer.op for transfer in transfers].count("load") == 8 + 12
        assert list(disk.iterdir()) == []

    def test_warms_up_in_one_round_if_there_is_no_time_for_another(self, disk: Path) -> None:
        workload, rounds = objects.one_tensor(1), list[None]()
        with Reserve(2 * workload.nbytes) as reserve, fastio.record() as transfers:
            warmup.warm_up(
                *(workload, workload.make(), disk / "file", reserve, 12),
                tell=lambda: rounds.append(None),
                another=lambda done: False,
            )
        assert len(rounds) == 12  # the progress is complete all the same
        assert [transfer.op for transfer in transfers].count("save") == 2


class TestTiming:
    def test_peak_excludes_held_memory(self) -> None:
        def filled() -> torch.Tensor:
            """Of pages fresh from the kernel: a heap that earlier tests left full of free pages would not grow."""
            return torch.frombuffer(mmap.mmap(-1, 32 * MIB), dtype=torch.uint8).fill_(1)

        def call() -> tuple[torch.Tensor, str]:
            scratch = filled()
            assert scratch[0] == 1
            return filled(), "copied"

        result, measured = timing.timed(call, held=32 * MIB)
        assert result.nbytes == 32 * MIB
        assert measured.way == "copied"
        assert measured.extra_bytes is not None
        assert 30 * MIB < measured.extra_bytes < 48 * MIB
        assert measured.seconds > 0

    def test_reads_utilisation_only_of_the_named_gpu(self) -> None:
        asked: list[str] = []
        often = threading.Event()

        def read(device: str) -> int:
            asked.append(device)
            if len(asked) > 2:
                often.set()
            return 40

        with timing.GpuBusy("cuda:1", read) as busy:
            often.wait()
        assert set(asked) == {"cuda:1"}
        assert busy.share() == pytest.approx(0.4)
        with timing.GpuBusy("cpu", read) as idle:
            asked.clear()
        assert (idle.share(), asked) == (None, [])

    def test_unreadable_utilisation_gives_a_reason_and_no_figure(self) -> None:
        def read(device: str) -> int:
            raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

        with timing.GpuBusy("cuda", read) as busy:
            pass
        assert busy.share() is None
        assert timing.gpu_problem("cuda", read) == "ModuleNotFoundError: nvidia-ml-py does not seem to be installed"
        assert timing.gpu_problem("cuda:1", lambda device: 40) == ""
        if not torch.cuda.is_available():
            assert timing.gpu_problem("cuda")


class TestFresh:
    def job(self, disk: Path, **changes: Any) -> fresh_process.Job:
        path = disk / "file.pt"
        workload = objects.one_tensor(1)
        thing = workload.make()
        torch.save(thing, path)
        answers = {"fingerprint": objects.fingerprint(thing), "state": "warm", **changes}
        return fresh_process.Job("torch", "load", workload=workload.name, path=str(path), **answers)

    def test_load_of_wrong_bytes_fails(self, disk: Path) -> None:
        with pytest.raises(fresh_process.ChildError, match="loaded something else"):
            fresh_process.measure(self.job(disk, fingerprint=1))

    def test_cold_load_fails_if_the_file_was_warmed(self, disk: Path) -> None:
        """Another process may read the file between its drop and the call, which would then read the page cache."""
        job = self.job(disk, state="cold")
        fresh_process.measure(job)
        with pytest.raises(fresh_process.ChildError, match=r"ResidencyError: .* this read would not be cold"):
            fresh_process.measure(job, at_ready=lambda: page_cache.warm(job.path))

    @pytest.mark.usefixtures("fresh_children")
    def test_output_of_libraries_does_not_change_the_result(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        noise = disk / "noise"
        noise.mkdir()
        monkeypatch.setattr(sys, "path", [str(noise), *sys.path])
        heard: list[str] = []
        (noise / "safetensors").mkdir()
        (noise / "safetensors" / "__init__.py").write_text("")
        (noise / "safetensors" / "torch.py").write_text(
            "import os, torch\n"
            "os.write(1, b'welcome to safetensors\\n')\n"
            "os.write(2, bytes(1 << 20))\n"
            "def load_file(path):\n"
            "    return {'tensor': torch.load(path)}\n"
        )
        job = replace(self.job(disk), peer="safetensors")
        done = {"at_ready": lambda: heard.append("ready"), "at_done": lambda: heard.append("done")}
        assert fresh_process.measure(job, **done).seconds > 0
        assert heard == ["ready", "done"]

    def test_child_error_has_the_childs_message(self, disk: Path) -> None:
        job = self.job(disk)
        os.unlink(job.path)
        with pytest.raises(fresh_process.ChildError, match="FileNotFoundError"):
            fresh_process.measure(job)

    @pytest.mark.usefixtures("fresh_children")
    def test_killed_child_raises_child_error(self, disk: Path) -> None:
        with pytest.raises(fresh_process.ChildError, match=r"status -?[0-9]+"):
            fresh_process.measure(self.job(disk), {"LD_PRELOAD": "", "PYTHONHOME": str(disk)})

    def test_every_second_job_runs_in_a_waiting_process(self, disk: Path) -> None:
        job, before = self.job(disk), warm_python.running()
        with fresh_process.paired():
            fresh_process.measure(job)
            assert len(waiting := warm_python.running() - before) == 1
            fresh_process.measure(job, {"THP_MEM_ALLOC_ENABLE": "1"})  # no process that waited without it
            assert len(others := warm_python.running() - before - waiting) == 1
            fresh_process.measure(job)
            assert warm_python.running() - before == others
        assert warm_python.running() == before
        fresh_process.measure(job)
        assert warm_python.running() == before

    def test_waiting_process_ends_after_an_error(self, disk: Path) -> None:
        before = warm_python.running()
        with pytest.raises(fresh_process.ChildError), fresh_process.paired():
            fresh_process.measure(self.job(disk, fingerprint=1))
        assert warm_python.running() == before

    def test_peak_of_a_load_excludes_the_object(self, disk: Path) -> None:
        """torch.load copies once, straight into the tensor; its peak is far below another copy of it."""
        measured = fresh_process.measure(self.job(disk))
        assert measured.extra_bytes is not None
        assert measured.extra_bytes < 16 * MIB


class TestGoals:
    @staticmethod
    def summary(work: str, tool: str, bandwidth: float, **changes: Any) -> stats.Summary:
        values: dict[str, Any] = {
            "workload": "big",
            "nbytes": 10**9,
            "rounds": 3,
            "seconds": 1e9 / bandwidth,
            "cpu_per_gb": 0.1,
        }
        values |= {"extra_bytes": None, "ratio": None, "ratio_low": None, "ratio_high": None, "ways": ()}
        values |= {"best_bandwidth": bandwidth * 1.25, **changes}
        return stats.Summary(work=work, tool=tool, bandwidth=bandwidth, **values)

    def test_durable_save_has_goals_against_all_rivals(self) -> None:
        found = goals.check(
            [
                self.summary(compare.DURABLE, "torch", 1e9, cpu_per_gb=0.31),
                self.summary(compare.DURABLE, "torch, no CRC", 2e9),
                self.summary(compare.DURABLE, "safetensors", 2.5e9),
                self.summary(compare.DURABLE, disk_limit.TOOL, 2e9),
                self.summary(compare.DURABLE, "fastio", 2.4e9, extra_bytes=65 * MIB),
            ],
            frozenset({"big"}),
        )
        told = {goal.against: (round(goal.measured, 3), goal.met) for goal in found}
        assert told == {
            "torch": (2.4, True),
            "torch, no CRC": (1.2, False),
            disk_limit.TOOL: (0.96, True),
            "torch's CPU seconds": (0.323, True),
            "the best peer, safetensors": (0.96, False),
            "memory beyond the object": (65.0, False),
        }

    @pytest.mark.parametrize("work", [compare.COLD, compare.WARM])
    def test_mapping_tools_and_limits_are_not_rivals_of_a_load(self, work: str) -> None:
        found = goals.check(
            [
                self.summary(work, "torch", 1e9),
                self.summary(work, "safetensors", 9e9),
                self.summary(work, "torch, mmap", 9e9),
                self.summary(work, memory_limit.TOOL, 9e9),
                self.summary(work, "fastio", 2e9),
            ],
            frozenset({"big"}),
        )
        assert {goal.against for goal in found} == {"torch", "the best peer that copies, torch"}

    def test_faster_peer_misses_the_goal(self) -> None:
        rows = [self.summary(compare.CACHED, "torchsnapshot", 8e9), self.summary(compare.CACHED, "fastio", 6e9)]
        (goal,) = goals.check(rows, frozenset({"big"}))
        assert (goal.against, goal.measured, goal.met) == ("the best peer, torchsnapshot", 0.75, False)

    @pytest.mark.parametrize(
        ("ring", "against", "asked"), [(2.2e9, disk_limit.RING, 0.909), (1.8e9, disk_limit.TOOL, 1.0)]
    )
    def test_goals_use_the_faster_disk_limit(self, ring: float, against: str, asked: float) -> None:
        for work in compare.LIMITED:
            found = goals.check(
                [
                    self.summary(work, disk_limit.TOOL, 2e9),
                    self.summary(work, disk_limit.RING, ring),
                    self.summary(work, "fastio", 2.5e9),
                ],
                frozenset({"big"}),
            )
            assert {goal.against: round(goal.measured, 3) for goal in found} == {against: asked}

    def test_small_objects_have_the_goal_of_torchs_speed(self) -> None:
        rows = [self.summary(compare.WARM, "torch", 1e9), self.summary(compare.WARM, "fastio", 0.9e9)]
        (goal,) = goals.check(rows, frozenset())
        assert (goal.asked, goal.met) == (1.0, False)

    def test_import_time_has_a_goal(self) -> None:
        (goal,) = goals.check([], frozenset(), 0.030)
        assert (goal.measured, goal.unit, goal.met) == (30.0, "ms", True)
