"""The harness itself: that what it reports is what was measured, and that what it measures is what it says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

import fastio
from fastio import dicts
from fastio.bench import (
    cold,
    compare,
    doctor,
    fresh,
    goals,
    limit,
    machine,
    peers,
    rivals,
    shapes,
    stats,
    sweep,
    timing,
    tune,
)
from fastio.bench import workloads as objects
from fastio.bench.commands import cli
from fastio.bench.contestants import Contestants
from fastio.bench.report import Report, interruptible, workspace
from fastio.bench.reserve import Reserve
from fastio.bench.rounds import Contestant, Failure, Measured, Sample, Task, interleave

MIB = 1 << 20


class FakeClock:
    """A clock that stands still until it is told to move."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.busy = 50.0

    def wall(self) -> float:
        return self.now

    def cpu(self) -> float:
        return self.busy

    def mover(self, seconds: list[float], cpu_share: float = 1.0) -> Callable[[], str]:
        """A transport of known speed: its calls take these times, one after the other."""
        times = iter(seconds)

        def run() -> str:
            took = next(times)
            self.now += took
            self.busy += took * cpu_share
            return "fake"

        return run

    def idle(self) -> None:
        """Something slow that must not be counted."""
        self.now += 100.0
        self.busy += 100.0


TASK = Task("save", "object", 2_000_000_000)
LOADS = (compare.COLD, compare.WARM)
SMALL = objects.small_tensors()


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """A folder on a filesystem where pages can be cold: tmpfs has nowhere else to keep them."""
    kind = machine.filesystem(tmp_path).kind
    if kind in ("tmpfs", "ramfs"):
        pytest.skip(f"{tmp_path} is on {kind}; use --basetemp to point to a disk")
    return tmp_path


def run(clock: FakeClock, rounds: int, *contestants: Contestant) -> list[Sample | Failure]:
    return list(interleave(TASK, contestants, rounds, clock))


class TestRounds:
    def test_a_transport_of_known_speed_gets_its_speed(self) -> None:
        clock = FakeClock()
        samples = run(clock, 3, Contestant("torch", clock.mover([4.0, 1.0, 2.0], 0.25), clock.idle, clock.idle))
        (summary,) = stats.summarise(s for s in samples if isinstance(s, Sample))
        assert summary.seconds == 2.0
        assert summary.bandwidth == 1e9
        assert summary.best_bandwidth == 2e9
        assert summary.cpu_per_gb == 0.25
        assert summary.ratio == 1.0

    def test_rounds_are_interleaved(self) -> None:
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

    def test_ratios_are_of_medians_and_the_spread_of_rounds(self) -> None:
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

    def test_a_failure_is_shown_and_the_others_go_on(self) -> None:
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

    def test_what_measures_itself_is_believed(self) -> None:
        clock = FakeClock()
        own = Measured(2.0, 0.5, 77, "way", 0.25)
        (sample,) = run(clock, 1, Contestant("fresh", lambda: own, clock.idle))
        assert isinstance(sample, Sample)
        assert (sample.seconds, sample.cpu_seconds, sample.extra_bytes, sample.way) == (2.0, 0.5, 77, "way")
        assert sample.gpu_busy == 0.25

    def test_an_interruption_keeps_what_was_measured(self, tmp_path: Path) -> None:
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
    def test_bert_has_its_published_size(self, layers: int, hidden: int, tensors: int, parameters: int) -> None:
        """The counts that the published bert-large-uncased and bert-base-uncased report of themselves."""
        found = shapes.bert(layers, hidden)
        assert len(found) == tensors
        assert sum(map(shapes.fp32_bytes, found.values())) == 4 * parameters

    def test_the_papers_sizes(self) -> None:
        sizes = [shapes.fp32_bytes(shapes.feature_map(batch)) / MIB for batch in (1, 4, 16, 64, 256, 512)]
        assert sizes == [3.0625, 12.25, 49, 196, 784, 1568]

    @pytest.mark.parametrize("workload", [objects.one_tensor(1), objects.small_tensors()], ids=lambda w: w.name)
    def test_an_object_is_as_large_as_it_says(self, workload: objects.Workload) -> None:
        tensors = objects.tensors(workload.make())
        assert sum(tensor.nbytes for tensor in tensors.values()) == workload.nbytes
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
        assert objects.find(workload.name).nbytes == workload.nbytes

    def test_a_fingerprint_sees_every_difference(self) -> None:
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
    def test_cold_is_really_cold_and_warm_really_warm(self, disk: Path) -> None:
        path = disk / "file"
        path.write_bytes(os.urandom(3 * MIB + 5))
        assert cold.resident(path) > 0
        cold.drop(path)
        assert cold.resident(path) == 0
        cold.warm(path)
        assert cold.resident(path) >= cold.WARM

    def test_a_folder_counts_as_all_its_files(self, disk: Path) -> None:
        folder = disk / "checkpoint"
        folder.mkdir()
        for name in "ab":
            (folder / name).write_bytes(os.urandom(MIB))
        cold.drop(folder)
        cold.warm(folder / "a")
        assert cold.resident(folder) == pytest.approx(0.5, abs=0.01)

    def test_what_stays_in_memory_is_no_cold_file(self) -> None:
        path = Path("/dev/shm") / f"fastio-bench-test-{os.getpid()}"
        path.write_bytes(bytes(MIB))
        try:
            with pytest.raises(cold.ResidencyError, match="stays in the page cache"):
                cold.drop(path)
        finally:
            path.unlink()

    def test_a_reserve_is_really_there_and_then_really_gone(self) -> None:
        peak = timing.Peak()
        with Reserve(64 * MIB) as reserve:
            reserve.hold()
            assert 60 * MIB <= (peak.beyond(0) or 0) < 80 * MIB
            reserve.release()
            after = timing.Peak()
            reserve.hold()
            assert (after.beyond(0) or 0) >= 60 * MIB
        assert (timing.Peak().beyond(0) or 0) < 8 * MIB


class TestTiming:
    def test_the_peak_is_beyond_what_is_held(self) -> None:
        def call() -> tuple[torch.Tensor, str]:
            scratch = torch.ones(32 * MIB, dtype=torch.uint8)
            return scratch.clone(), "copied"

        result, measured = timing.timed(call, held=32 * MIB)
        assert result.nbytes == 32 * MIB
        assert measured.way == "copied"
        assert measured.extra_bytes is not None
        assert 30 * MIB < measured.extra_bytes < 48 * MIB
        assert measured.seconds > 0

    def test_the_gpu_is_asked_only_where_there_is_one(self) -> None:
        asked = threading.Event()

        def read() -> int:
            asked.set()
            return 40

        with timing.GpuBusy("cuda", read) as busy:
            asked.wait()
        assert busy.share() == pytest.approx(0.4)
        with timing.GpuBusy("cpu") as idle:
            pass
        assert idle.share() is None


class TestPeers:
    """Each peer for real: what it saves, it loads; durable means on the disk."""

    @staticmethod
    def installed(name: str) -> peers.Peer:
        found = peers.find(name)
        problems = [found.unable(operation, "tensor") for operation in ("save", "load")]
        if any("not installed" in problem for problem in problems):
            pytest.skip(f"{name}: {' '.join(problems)}")
        return found

    @pytest.mark.parametrize(
        "workload", [objects.one_tensor(1), pytest.param(SMALL, marks=pytest.mark.slow)], ids=lambda w: w.kind
    )
    @pytest.mark.parametrize("name", [peer.name for peer in peers.every()])
    def test_round_trip_in_fresh_processes(self, name: str, workload: objects.Workload, disk: Path) -> None:
        peer = self.installed(name)
        if peer.unable("load", workload.kind):
            with pytest.raises(LookupError) if peer.load is None else pytest.raises(fresh.ChildError):
                _ = peer.loader(), fresh.measure(fresh.Job(peer.name, "load", "cold", workload.name, str(disk)))
            return
        thing = workload.make()
        make = Contestants(disk, workload, thing, objects.fingerprint(thing), Reserve(8 * MIB))
        task = Task("load", workload.name, workload.nbytes)
        state = "cold" if workload.kind == "tensor" else "warm"
        (outcome,) = interleave(task, [make.loader(peer, state)], 1)
        assert isinstance(outcome, Sample), outcome
        assert outcome.seconds > 0
        assert outcome.extra_bytes is not None

    @pytest.mark.parametrize("name", [peer.name for peer in peers.every() if peer.save])
    def test_a_durable_save_is_on_the_disk(self, name: str, disk: Path) -> None:
        """DONTNEED passes over dirty pages: if it can drop all of them at once, they had been written out."""
        path = disk / "saved"
        self.installed(name).saver()(torch.rand(2 * MIB), str(path), True)
        for file in cold.files(path):
            with open(file, "rb") as stream:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert cold.resident(path) == 0

    def test_checksums_are_on_again(self, disk: Path) -> None:
        from torch.serialization import get_crc32_options

        assert get_crc32_options()
        rivals.torch_save_without_crc(torch.rand(4), str(disk / "a"), False)
        assert get_crc32_options()

    @pytest.mark.slow
    def test_every_transport_can_be_asked_for_by_name(self, disk: Path) -> None:
        workload = objects.one_tensor(1)
        tools = [peers.find(f"{peers.TOOL}{status.name}") for status in fastio.tools() if status.available]
        outcomes = list(sweep.Sweep(disk, 1, [workload], tools).run())
        assert not [outcome for outcome in outcomes if isinstance(outcome, Failure)]
        used = {(o.tool, o.work): o.way for o in outcomes if isinstance(o, Sample)}
        assert used["posix", "write"].startswith("posix, cached")
        assert used["uring", "cold read"].startswith(("uring, direct", "posix"))
        assert not list(disk.iterdir())

    def test_the_import_is_timed_in_a_fresh_process(self) -> None:
        assert fresh.import_seconds() > 0


class TestFresh:
    def job(self, disk: Path, **changes: Any) -> fresh.Job:
        path = disk / "file.pt"
        workload = objects.one_tensor(1)
        thing = workload.make()
        torch.save(thing, path)
        answers = {"fingerprint": objects.fingerprint(thing), "state": "warm", **changes}
        return fresh.Job("torch", "load", workload=workload.name, path=str(path), **answers)

    def test_what_was_loaded_is_looked_at(self, disk: Path) -> None:
        with pytest.raises(fresh.ChildError, match="loaded something else"):
            fresh.measure(self.job(disk, fingerprint=1))

    def test_the_childs_own_words_come_back(self, disk: Path) -> None:
        job = self.job(disk)
        os.unlink(job.path)
        with pytest.raises(fresh.ChildError, match="FileNotFoundError"):
            fresh.measure(job)

    def test_a_child_that_dies_is_a_failure(self, disk: Path) -> None:
        with pytest.raises(fresh.ChildError, match=r"status -?[0-9]+"):
            fresh.measure(self.job(disk), {"LD_PRELOAD": "", "PYTHONHOME": str(disk)})

    def test_the_peak_of_a_load_is_beyond_the_object(self, disk: Path) -> None:
        """torch.load copies once, straight into the tensor; its peak is far below another copy of it."""
        measured = fresh.measure(self.job(disk))
        assert measured.extra_bytes is not None
        assert measured.extra_bytes < 16 * MIB


@pytest.mark.parametrize("kind", [limit.FioLimit, limit.UringLimit])
def test_the_limit_moves_what_it_says(kind: type[limit.FioLimit] | type[limit.UringLimit], disk: Path) -> None:
    if kind is limit.FioLimit and not isinstance(limit.find(), limit.FioLimit):
        pytest.skip("fio is not installed")
    path, tool = disk / "limit", kind()
    for measured in (tool.write(path, 9 * MIB + 1), tool.read(path, 9 * MIB + 1)):
        assert measured.seconds > 0
        assert measured.way == tool.name
    assert path.stat().st_size > 9 * MIB
    assert cold.resident(path) == 0


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

    def test_a_durable_save_is_held_against_all(self) -> None:
        found = goals.check(
            [
                self.summary(compare.DURABLE, "torch", 1e9, cpu_per_gb=0.31),
                self.summary(compare.DURABLE, "torch, no CRC", 2e9),
                self.summary(compare.DURABLE, "safetensors", 2.5e9),
                self.summary(compare.DURABLE, limit.TOOL, 2e9),
                self.summary(compare.DURABLE, "fastio", 2.4e9, extra_bytes=65 * MIB),
            ],
            frozenset({"big"}),
        )
        told = {goal.against: (round(goal.measured, 3), goal.met) for goal in found}
        assert told == {
            "torch": (2.4, True),
            "torch, no CRC": (1.2, False),
            limit.TOOL: (0.96, True),
            "torch's CPU seconds": (0.323, True),
            "the best peer, safetensors": (0.96, False),
            "memory beyond the object": (65.0, False),
        }

    def test_what_only_maps_is_no_rival_of_a_cold_load(self) -> None:
        found = goals.check(
            [
                self.summary(compare.COLD, "torch", 1e9),
                self.summary(compare.COLD, "safetensors", 9e9),
                self.summary(compare.COLD, "fastio", 2e9),
            ],
            frozenset({"big"}),
        )
        assert {goal.against for goal in found} == {"torch", "the best peer, torch"}

    def test_small_objects_are_never_slower_than_torch(self) -> None:
        rows = [self.summary(compare.WARM, "torch", 1e9), self.summary(compare.WARM, "fastio", 0.9e9)]
        (goal,) = goals.check(rows, frozenset())
        assert (goal.asked, goal.met) == (1.0, False)

    def test_the_import(self) -> None:
        (goal,) = goals.check([], frozenset(), 0.030)
        assert (goal.measured, goal.unit, goal.met) == (30.0, "ms", True)


class TestCommands:
    @staticmethod
    def invoke(*arguments: str, status: int = 0) -> Result:
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == status, result.output
        return result

    @pytest.fixture(autouse=True)
    def small_limit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(doctor, "LIMIT_NBYTES", 32 * MIB)

    def test_doctor_says_what_is_here(self, disk: Path) -> None:
        said = self.invoke("doctor", "--quick", "--dir", str(disk)).stdout
        for expected in ("filesystem", "io_uring", "page cache", "GPUDirect Storage", "native module", "posix"):
            assert expected in said
        assert not list(disk.iterdir())

    def test_doctor_tells_the_way_of_the_bytes(self, disk: Path) -> None:
        told = json.loads(self.invoke("doctor", "--quick", "--json", "--dir", str(disk)).stdout)
        assert {name for name, _ in told["findings"]["ways"]} == {"durable save", "save", "cold load", "warm load"}
        assert {(sample["tool"]) for sample in told["samples"]} == {"write", "read"}
        assert told["machine"]["filesystem"]["kind"]

    def test_doctor_knows_a_filesystem_without_direct_io(self) -> None:
        with workspace(Path("/dev/shm")) as folder:
            assert "cannot be dropped" in doctor.page_cache(folder)
            assert doctor.ways(folder)

    def test_io(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sweep, "QUICK_BATCHES", (1,))
        said = self.invoke("io", "--quick", "--rounds", "1", "--tool", "posix", "--dir", str(disk)).stdout
        for expected in ("durable write", "warm read", "posix", "IOef"):
            assert expected in said
        assert not list(disk.iterdir())

    def test_io_refuses_a_tool_that_is_not_there(self, disk: Path) -> None:
        self.invoke("io", "--tool", "teleport", "--dir", str(disk), status=2)

    def test_sizes_that_do_not_fit_are_cut_and_named(self, disk: Path) -> None:
        kept, cut = sweep.fitting((1, 1 << 20), disk)
        assert [workload.name for workload in kept] == ["tensor-3.0625"]
        assert "3211264 MiB" in cut.replace(",", "").replace("3.21126e+06", "3211264")

    def test_peers_keeps_every_sample(self, disk: Path) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        tools = ("torch", "numpy", "fastio", "fastio, unverified")
        chosen = [word for tool in tools for word in ("--tool", tool)]
        said = self.invoke(
            *("peers", "--workload", "tensor-3.0625", "--rounds", "1", "--out", str(out), "--dir", str(work)), *chosen
        ).stdout
        assert "Goals" in said
        told = json.loads((out / "peers.json").read_text())
        counts = {(s["work"], s["tool"]): s["rounds"] for s in told["summaries"]}
        assert counts == {
            (work, tool): 1 for work in compare.WORKS for tool in tools if work in LOADS or tool != "fastio, unverified"
        }
        assert len(told["samples"]) == sum(counts.values())
        assert not told["failures"]
        assert len(list(out.glob("*.png"))) == 4
        assert not list(work.iterdir())
        assert told["machine"]["versions"]["torch"]
        assert not told["interrupted"]

    def test_tune_shows_what_was_learned(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tune, "QUICK_BATCHES", (1,))
        monkeypatch.setenv("FASTIO_DICTIONARY_DIR", str(disk / "dictionaries"))
        dicts.flush()
        dicts.forget()
        said = self.invoke("tune", "--quick", "--rounds", "2", "--dir", str(disk)).stdout
        assert "one tensor, 3.0625 MiB, durable save" in said
        assert "posix" in said
        assert list((disk / "dictionaries").iterdir())
        dicts.forget()

    def test_ctrl_c_keeps_what_was_measured_and_leaves_nothing(self, disk: Path) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        arguments = ["peers", "--workload", "small-tensors", "--tool", "torch", "--rounds", "1000"]
        # Whoever runs the tests in the background of a shell hands an ignored SIGINT on to them.
        hear = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        command = [sys.executable, "-c", hear + "from fastio.bench.cli import main; main()", *arguments]
        child = subprocess.Popen(
            [*command, "--work", "save", "--dir", str(work), "--out", str(out)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        saving = threading.Event()
        while child.poll() is None and not list(work.glob("*/saving")):
            saving.wait(0.01)
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate()
        assert child.returncode == 130, complaint
        assert "interrupted" in said
        assert json.loads((out / "peers.json").read_text())["interrupted"]
        assert not list(work.iterdir())

    def test_without_click_it_says_what_to_install(self) -> None:
        code = "import sys; sys.modules['click'] = None; from fastio.bench.cli import main; main()"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert "pip install 'fastio[bench]'" in child.stderr
