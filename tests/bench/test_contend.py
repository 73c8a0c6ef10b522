"""``fastio-bench contend``: the load processes' pace and end, and the losses of both sides."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from fastio_bench.contend import command as contend_command
from fastio_bench.contend import contention, modelled, tables
from fastio_bench.contend.contention import STEP, Call
from fastio_bench.contend.modelled import PAST, THROUGH
from fastio_bench.contend.options import contend
from fastio_bench.contend.training import PLAIN, TO_DISK, TO_HOST, WAYS, Training
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Failure
from fastio_bench.machine import bandwidth_load, bandwidth_loads, core_halves
from fastio_bench.machine.bandwidth_loads import BandwidthLoadError, BandwidthLoads, Traffic, chunk_seconds
from fastio_bench.offload import device_ways
from fastio_bench.offload.device_steps import SHARES
from fastio_bench.offload.device_ways import PLAIN as PLAIN_WAY
from fastio_bench.peers import compare
from fastio_bench.report.table import MEASURED, SIMULATED
from fastio_bench.workloads import objects
from fastio_bench.workloads.training_models import Size
from warm_python import WarmPopen

MIB = 1 << 20
CORE = min(os.sched_getaffinity(0))
_PATIENCE = 6000  # polls, a hundredth of a second apart
SMALL = Size("transformer", 8, 2, 64)


@pytest.fixture
def small_loads() -> Iterator[BandwidthLoads]:
    """One load process with little memory."""
    with BandwidthLoads([CORE], 8 * MIB) as own:
        yield own


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Use one thread: with busy cores, two threads of a tiny network wait longer than they compute."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def gone(pid: int) -> bool:
    """Whether a process has ended; it may still be a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(is_so: Callable[[], bool]) -> None:
    """Wait until it is so, or fail."""
    for _ in range(_PATIENCE):
        if is_so():
            return
        time.sleep(0.01)
    pytest.fail("it never was so")


def wait_until_gone(pids: list[int]) -> None:
    """Wait until all have ended, or fail."""
    wait_until(lambda: all(map(gone, pids)))


class TestThrottle:
    """The throttle's pace, on a fake clock."""

    @staticmethod
    def run(rate: float, chunk: float, chunks: int, oversleep: float = 0.0) -> float:
        """The seconds for ``count`` chunks of 1000 bytes, each taking ``chunk`` seconds without a limit."""
        now = 100.0
        throttle = bandwidth_load.Throttle(rate, now)
        for _ in range(chunks):
            now += chunk
            pause = throttle.pause(1000, now)
            now += pause + (oversleep if pause else 0.0)
        return now - 100.0

    def test_keeps_its_rate(self) -> None:
        assert self.run(rate=1e6, chunk=0.0002, chunks=500) == pytest.approx(0.5)

    def test_catches_up_after_a_long_sleep(self) -> None:
        assert self.run(rate=1e6, chunk=0.0002, chunks=500, oversleep=0.0007) == pytest.approx(0.5, rel=0.01)

    def test_never_pauses_when_too_slow(self) -> None:
        assert self.run(rate=1e6, chunk=0.002, chunks=100) == pytest.approx(0.2)
        assert self.run(rate=math.inf, chunk=0.002, chunks=100) == pytest.approx(0.2)

    def test_does_not_catch_up_a_long_delay(self) -> None:
        """After ten seconds without bandwidth, it must not exceed its rate for the next ten."""
        throttle, now, moved = bandwidth_load.Throttle(1e6, 100.0), 110.0, 0
        while now < 111.0:
            now += 0.0001
            moved += 1000
            now += throttle.pause(1000, now)
        assert moved <= 1e6 * (1.0 + 0.05) + 2000

    @pytest.mark.parametrize(("forgiven", "rate"), [(True, 1e6), (False, 1.16e6)])
    def test_begin_forgets_the_delay_of_a_stalled_start(self, forgiven: bool, rate: float) -> None:
        """After a stall of 40 ms it would be a sixth too fast in the measured quarter of a second."""
        throttle, now, moved = bandwidth_load.Throttle(1e6, 100.0), 100.04, 0
        if forgiven:
            throttle.forgive(now)
        while now < 100.29:
            now += 0.0001
            moved += 1000
            now += throttle.pause(1000, now)
        assert moved / (now - 100.04) == pytest.approx(rate, rel=0.005)


class TestLatency:
    @pytest.mark.parametrize("seconds", [1e-6, 3e-6, 5e-4, 0.02, 1.7])
    def test_bin_is_four_percent_wide(self, seconds: float) -> None:
        took = [0] * bandwidth_load.BINS
        took[bandwidth_load.bin_of(seconds)] = 1
        assert seconds <= (chunk_seconds(took, 0.5) or 0.0) <= seconds * 1.05

    def test_values_out_of_range_are_in_the_last_bins(self) -> None:
        assert bandwidth_load.bin_of(1e-9) == 0
        assert bandwidth_load.bin_of(1e9) == bandwidth_load.BINS - 1

    def test_quantiles_come_from_the_histogram(self) -> None:
        took = [0] * bandwidth_load.BINS
        took[bandwidth_load.bin_of(1e-3)], took[bandwidth_load.bin_of(1.0)] = 95, 5
        assert chunk_seconds(took, 0.5) == chunk_seconds(took, 0.95) == pytest.approx(1e-3, rel=0.05)
        assert chunk_seconds(took, 0.99) == pytest.approx(1.0, rel=0.05)
        assert chunk_seconds([0] * bandwidth_load.BINS, 0.5) is None


class TestBandwidthLoads:
    def test_pauses_until_a_pace_is_set(self, small_loads: BandwidthLoads) -> None:
        assert small_loads.watched(0.05).moved == 0
        began, before = time.perf_counter(), small_loads.begin()
        small_loads.pace(400 * MIB)
        wait_until(lambda: (small_loads.reading() - before).moved > 100 * MIB)
        small_loads.pace(0)
        wait_until(lambda: small_loads.watched(0.05).moved == small_loads.watched(0.05).moved == 0)
        own = small_loads.reading() - before
        assert own.moved <= 400 * MIB * (time.perf_counter() - began) + 2 * bandwidth_load.TRAFFIC
        assert sum(own.took) * bandwidth_load.TRAFFIC == own.moved

    def test_does_not_catch_up_delay_from_before_begin(self, small_loads: BandwidthLoads) -> None:
        pace = 1600 * MIB
        for _ in range(3):
            small_loads.pace(pace)
            small_loads.watched(0.01)
            os.kill(small_loads.pids[0], signal.SIGSTOP)
            threading.Event().wait(0.1)
            os.kill(small_loads.pids[0], signal.SIGCONT)
            began, before = time.perf_counter(), small_loads.begin()
            threading.Event().wait(0.2)
            moved = (small_loads.reading() - before).moved
            assert moved <= pace * (time.perf_counter() - began) + 2 * bandwidth_load.TRAFFIC

    def test_limit_is_the_median_rate_at_an_infinite_pace(
        self, small_loads: BandwidthLoads, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rates, paces = iter([3, 1, 2]), []

        def watched(seconds: float) -> Traffic:
            paces.append(small_loads._slots[0].target)
            return Traffic(seconds, round(next(rates) * seconds * MIB), ())

        monkeypatch.setattr(small_loads, "watched", watched)
        assert small_loads.limit() == 2 * MIB
        paces.append(small_loads._slots[0].target)
        assert paces == [math.inf] * 3 + [0]

    def test_is_bound_to_its_core(self, small_loads: BandwidthLoads) -> None:
        (pid,) = small_loads.pids
        assert os.sched_getaffinity(pid) == {CORE}

    def test_dead_load_process_raises(self, small_loads: BandwidthLoads) -> None:
        os.kill(small_loads.pids[0], signal.SIGKILL)
        wait_until_gone(small_loads.pids)
        with pytest.raises(BandwidthLoadError, match=f"core {CORE} ended with status -9"):
            small_loads.reading()

    def test_failed_start_raises_with_the_reason(self) -> None:
        with pytest.raises(BandwidthLoadError, match="Invalid argument"):
            BandwidthLoads([1 << 12], 8 * MIB).__enter__()

    def test_are_killed_after_an_error(self) -> None:
        pids: list[int] = []

        def fail() -> None:
            with BandwidthLoads([CORE], 8 * MIB) as own:
                pids.extend(own.pids)
                raise RuntimeError("over")

        with pytest.raises(RuntimeError, match="over"):
            fail()
        assert pids
        assert all(map(gone, pids))

    def test_die_with_a_killed_parent(self) -> None:
        code = (
            "import time; from fastio_bench.machine.bandwidth_loads import BandwidthLoads; "
            "own = BandwidthLoads(nbytes=8 << 20).__enter__()\n"
            "own.pace(1e9); print(*own.pids, flush=True); time.sleep(3600)"
        )
        parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == len(os.sched_getaffinity(0))
        assert not any(map(gone, pids))
        parent.kill()
        parent.communicate()
        try:
            wait_until_gone(pids)
        except pytest.fail.Exception:
            for pid in pids:
                os.kill(pid, signal.SIGKILL)
            raise

    def test_exits_at_once_if_the_parent_has_ended(self) -> None:
        settings = {"fd": 0, "index": 0, "core": CORE, "nbytes": 8 * MIB, "parent": 1 << 30}
        command = [sys.executable, "-I", bandwidth_load.__file__, json.dumps(settings)]
        child = subprocess.run(command, capture_output=True, text=True, check=False)
        assert child.returncode == 1
        assert "parent" in child.stderr

    def test_buffers_exceed_the_caches(self) -> None:
        own = BandwidthLoads([CORE])
        assert own.nbytes >= max(bandwidth_loads.LEAST_NBYTES, 4 * bandwidth_loads.largest_cache())
        assert own.nbytes % bandwidth_load.CHUNK == 0
        assert bandwidth_loads.largest_cache() % 1024 == 0


class TestTraining:
    @pytest.mark.parametrize("way", WAYS)
    def test_every_way_trains(self, way: str, tmp_path: Path, one_thread: None) -> None:
        own = Training(way, SMALL, tmp_path)
        try:
            own.step()
            assert (own.moved > 0) is (way != PLAIN)
        finally:
            own.close()


def calls() -> list[Call]:
    """Two rounds: torch, and a step, take twice as long under load; the load keeps three quarters of its pace."""
    took = [0] * bandwidth_load.BINS
    took[bandwidth_load.bin_of(1e-3)] = 100
    slow = [0] * bandwidth_load.BINS
    slow[bandwidth_load.bin_of(4e-3)] = 100
    alone, beside = Traffic(1.0, 4_000_000_000, tuple(took)), Traffic(2.0, 6_000_000_000, tuple(slow))
    found = []
    for number in range(2):
        for work, tool, nbytes in (("save", "torch", 10**9), (STEP, PLAIN, 0), (STEP, TO_DISK, 10**6)):
            free = 2.0 + number
            found.append(Call(work, tool, 0.0, number, nbytes, free, None, None))
            found.append(Call(work, tool, 0.5, number, nbytes, 2 * free, alone, beside))
    return found


class TestTables:
    def test_losses_compare_the_same_round(self) -> None:
        free, half = tables.losses(calls())[:2]
        assert (free.level, free.seconds, free.kept, free.loads_kept) == (0.0, 2.5, 1.0, None)
        assert (half.level, half.seconds, half.kept, half.loads_kept) == (0.5, 5.0, 0.5, 0.75)

    def test_tables_show_both_sides(self) -> None:
        found = {own.name: own for own in tables.tables(calls(), 8e9, "two cores")}
        assert list(found) == ["memory", "files", "training", "hogs", "latency"]
        assert [list(row) for row in found["memory"].rows] == [["all they can", None, 8.0, 1.0], ["50%", 4.0, 4.0, 0.5]]
        assert [list(row) for row in found["files"].rows] == [["save", "torch", 400.0, 0.5, None, None]]
        assert [list(row) for row in found["training"].rows] == [
            [PLAIN, 2500.0, 0.0, 0.5, None, None],
            [TO_DISK, 2500.0, 1.0, 0.5, None, None],
        ]
        assert [list(row)[2:] for row in found["hogs"].rows] == [[0.75, None, None]] * 3
        rows = [list(row) for row in found["latency"].rows]
        assert [row[:2] for row in rows] == [["50%", "alone"], ["50%", PLAIN], ["50%", TO_DISK]]
        assert rows[0][5:] == [0.0, 0.0, 0.0]
        assert rows[1][5] == pytest.approx(300.0)
        for own in found.values():
            assert own.origin == MEASURED
            assert own.source.startswith("FlashNeuron, ")
            assert "two cores" in own.note
            assert all(len(row) == len(own.columns) for row in own.rows)

    def test_no_samples_give_no_table(self) -> None:
        assert tables.tables([], 0.0, "") == []


class TestCommand:
    @pytest.fixture
    def small(self, monkeypatch: pytest.MonkeyPatch, one_thread: None) -> None:
        monkeypatch.setattr(contention, "WORKS", (compare.DURABLE, compare.WARM))
        monkeypatch.setattr(contend_command, "QUICK_BATCH", 1)
        monkeypatch.setattr(contend_command, "QUICK_SIZE", SMALL)
        monkeypatch.setattr(contention, "_ALONE", 0.02)
        monkeypatch.setattr(contention, "_LEARNING", 1)
        monkeypatch.setattr(bandwidth_loads, "LEAST_NBYTES", 8 * MIB)
        monkeypatch.setattr(bandwidth_loads, "_CACHES", 0)
        monkeypatch.setattr(bandwidth_loads, "_WINDOW", 0.05)

    def test_command_measures_both_sides_at_every_level(self, small: None, tmp_path: Path) -> None:
        arguments = ["--quick", "--rounds", "1", "--json", "--dir", str(tmp_path)]
        result = CliRunner().invoke(contend, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        told = json.loads(result.stdout)
        assert not told["failures"]
        found = told["findings"]["memory"]
        assert found["bytes_per_s"] > 0
        seen = [(call["work"], call["tool"], call["level"]) for call in found["calls"]]
        assert len(seen) == len(set(seen))
        works = [(work, tool) for work in contention.WORKS for tool in contention.TOOLS]
        works += [(STEP, way) for way in WAYS]
        assert set(seen) == {(*one, level) for one in works for level in contention.LEVELS}
        for call in found["calls"]:
            assert (call["alone"] is None) is (call["beside"] is None) is (call["level"] == 0)
        names = [own["name"] for own in told["exhibits"]]
        ours, theirs = ["memory", "files", "training", "hogs", "latency"], ["12", "13", "4"]
        assert names == [*ours, *(f"flashneuron-{number}" for number in theirs)]
        assert " of disk" in result.stderr
        assert not list(tmp_path.iterdir())

    @pytest.mark.simulated
    def test_command_models_training_on_a_device(
        self, small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(modelled, "SIZE", SMALL)
        monkeypatch.setattr(modelled, "_ALONE", 0.02)
        arguments = ["--quick", "--rounds", "1", "--device", "simulated", "--json", "--dir", str(tmp_path)]
        result = CliRunner().invoke(contend, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        host, training = json.loads(result.stdout)["exhibits"]
        assert (host["origin"], training["origin"]) == (MEASURED, SIMULATED)
        assert [row[1] for row in training["rows"]] == [PLAIN_WAY, f"offload {THROUGH}", f"offload {PAST}"] * 2
        assert all(kept > 0 for row in host["rows"] for kept in row[1:])

    @pytest.mark.slow
    @pytest.mark.simulated
    @pytest.mark.parametrize("steps", [2, pytest.param(4, marks=pytest.mark.nightly)])
    def test_only_transfers_through_the_host_lose_bandwidth(
        self, tmp_path: Path, steps: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(modelled, "_WARM_UP", steps)
        device_ways.ready("simulated")
        device = torch.device("simulated", 0)
        found = list(
            modelled.train(device, tmp_path, [modelled.Left(0.0, 0.0, 1.0, 1.0), modelled.Left(0.9, 0.9, 0.5, 1.0)])
        )
        kept = {(one.setting, one.way): one.kept for one in found if one.level}
        hidden, bound = SHARES
        assert kept[bound, THROUGH] == pytest.approx(0.5, abs=0.05)
        assert kept[hidden, THROUGH] > 0.9
        assert [kept[setting, way] for setting in SHARES for way in (PLAIN_WAY, PAST)] == pytest.approx(
            [1.0] * 4, abs=0.02
        )

    def test_what_is_measured_has_other_cores_than_the_load(self) -> None:
        cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
        own, others = core_halves.halves()
        assert {*own, *others} == cores
        assert len(cores) == 1 or not {*own} & {*others}
        with core_halves.bound(own[:1]):
            assert os.sched_getaffinity(0) == {own[0]}
            assert torch.get_num_threads() == 1
            child = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
            assert f"Cpus_allowed_list:\t{own[0]}\n" in child
        assert (os.sched_getaffinity(0), torch.get_num_threads()) == (cores, threads)

    def test_levels_are_interleaved(self, small: None, small_loads: BandwidthLoads, tmp_path: Path) -> None:
        tensor, levels = objects.one_tensor(1), (0.0, 0.5)
        own = contention.Contention(tmp_path, 2, tensor, SMALL, small_loads, 1e9, levels)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(contention, "WORKS", ())
            list(own.run())
        turns = [(call.round, call.level, call.tool) for call in own.calls]
        assert turns == [(number, level, way) for number in range(2) for level in levels for way in WAYS]
        assert {call.tool for call in own.calls if call.nbytes > 0} == {TO_HOST, TO_DISK}

    def test_calls_wait_equally_at_every_level_before_memory_is_freed(
        self, small: None, small_loads: BandwidthLoads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[str] = []

        class Noting(Reserve):
            def hold(self, all_but: int = 0) -> None:
                seen.append("hold")
                super().hold(all_but)

            def release(self, nbytes: int | None = None) -> None:
                seen.append("release")
                super().release(nbytes)

        def watched(seconds: float) -> Traffic:
            seen.append("watch")
            return BandwidthLoads.watched(small_loads, seconds)

        monkeypatch.setattr(small_loads, "watched", watched)
        monkeypatch.setattr(contention, "Reserve", Noting)
        monkeypatch.setattr(contention, "WORKS", (compare.WARM,))
        monkeypatch.setattr(contention, "WAYS", ())
        own = contention.Contention(tmp_path, 2, objects.one_tensor(1), SMALL, small_loads, 1e9)
        assert not [outcome for outcome in own.run() if isinstance(outcome, Failure)]
        calls = 2 * len(contention.LEVELS) * len(contention.TOOLS)
        assert seen[seen.index("watch") : -1] == ["watch", "hold", "release", "hold"] * calls

    def test_ctrl_c_leaves_no_files_and_no_children(self, tmp_path: Path) -> None:
        code = "import os; os.sync = lambda: None; from fastio_bench.contend.options import contend; contend()"
        command = [sys.executable, "-c", code, "--quick", "--rounds", "1000", "--dir", str(tmp_path)]
        pipe = subprocess.PIPE
        child = WarmPopen(command, stdout=pipe, stderr=pipe, text=True)
        saving, children = threading.Event(), Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while child.poll() is None and not list(tmp_path.glob("*/saving")):
            saving.wait(0.01)
        pids = [int(word) for word in children.read_text().split()]
        assert pids
        child.send_signal(signal.SIGINT)
        said, complaint = child.communicate()
        assert child.returncode == 130, complaint
        assert "interrupted" in said
        assert all(map(gone, pids))
        assert not list(tmp_path.iterdir())
