"""``fastio-bench checkpoint``: state, savers, restores, the command and its goals."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner, Result

from benching import MIB, on_disk, processes
from fastio.checkpoint import Checkpointer
from fastio_bench.checkpoint import child as checkpoint_child
from fastio_bench.checkpoint import runs as checkpoint_runs
from fastio_bench.checkpoint import savers, slowdown, tables
from fastio_bench.checkpoint.options import checkpoint
from fastio_bench.checkpoint.state import Shape, TrainingState, shape_of
from fastio_bench.checkpoint.works import (
    ALONE,
    BLOCKED,
    BLOCKED_OF,
    BUDGETED,
    COLUMNS,
    COPY,
    DCP,
    DCP_CACHED,
    DCP_SYNCED,
    DURABLE,
    FASTIO,
    FULL,
    INCREMENTAL,
    MAPPED,
    PROCESS,
    RANK_COUNTS,
    RANKS_LOAD,
    RANKS_SAVE,
    RESHARD,
    RESTORE,
    RESTORERS,
    ROWS,
    SAVERS,
    SLOWED,
    SLOWING,
    STEP_OF,
    TORCH,
    WORKS,
    Job,
)
from fastio_bench.harness import page_cache
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.harness.run_record import workspace
from fastio_bench.machine import disk_limit
from warm_python import WarmPopen

# DCP remarks that there is no process group, which is meant.
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

SMALL = Shape(2, 64)
in_fresh_processes = checkpoint_child.run


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return on_disk(tmp_path)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run single jobs in this process, since a fresh one takes seconds to start."""

    def run(jobs: Sequence[Job]) -> Iterator[Sample | Failure]:
        if len(jobs) > 1:
            yield from in_fresh_processes(jobs)
            return
        try:
            yield from checkpoint_child.done(jobs[0])
        except OSError as error:
            raise ChildError(str(error)) from error

    monkeypatch.setattr(checkpoint_child, "run", run)
    monkeypatch.setattr(slowdown, "_ALONE_SECONDS", 0.01)


def invoke(*arguments: object) -> Result:
    result = CliRunner().invoke(checkpoint, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def job(task: str, folder: Path, tool: str = "", saves: int = 1, rank: int = 0, world: int = 1) -> Job:
    return Job(task, str(folder), SMALL.depth, SMALL.width, tool, saves, rank, world)


class TestState:
    @pytest.mark.parametrize("nbytes", [3_600_000_000, 1_200_000_000, 240_000_000, 24_000_000, 2_000_000])
    def test_shape_has_about_the_requested_bytes(self, nbytes: int) -> None:
        shape = shape_of(nbytes)
        assert 3 * 4 * 12 * shape.depth * shape.width**2 == pytest.approx(nbytes, rel=0.2)
        assert nbytes < 10_000_000 or shape.depth >= 8

    def test_state_has_parameters_and_moments(self) -> None:
        state = TrainingState(SMALL)
        parameters = sum(parameter.nbytes for parameter in state.model.parameters())
        steps = 4 * len(list(state.model.parameters()))
        assert state.nbytes == 3 * parameters + steps
        assert state.fingerprint() == TrainingState(SMALL).fingerprint()

    def test_change_touches_a_tenth_of_bytes_and_storages(self) -> None:
        state = TrainingState(Shape(24, 64))
        before = {name: tensor.clone() for name, tensor in state.tensors().items()}
        state.change(0.1)
        changed = [name for name, tensor in state.tensors().items() if not torch.equal(tensor, before[name])]
        assert 0.08 < sum(before[name].nbytes for name in changed) / state.nbytes <= 0.1
        assert 0.05 < len(changed) / len(before) < 0.15
        assert all(bool((state.tensors()[name] != before[name]).all()) for name in changed)


class TestSavers:
    @pytest.mark.parametrize("tool", SAVERS)
    def test_saver_writes_everything_and_clears_it(self, tool: str, disk: Path) -> None:
        state = TrainingState(SMALL)
        saver = savers.make(tool, state, disk / "saving")
        for _ in range(2):
            saver.clear()
            saver.save()
            saver.wait()
            assert sum(path.stat().st_size for path in page_cache.files(disk / "saving")) == pytest.approx(
                state.nbytes, rel=1.0
            )
        saver.clear()
        assert not [path for path in page_cache.files(disk / "saving") if path.exists() and path.stat().st_size > 4096]
        saver.close()

    def test_peak_is_one_snapshot(self, disk: Path) -> None:
        mine = Job("saving.save", str(disk), 10, 256, FASTIO, 2)
        nbytes = TrainingState(Shape(10, 256)).nbytes
        samples = [one for one in in_fresh_processes([mine]) if isinstance(one, Sample) and one.work == DURABLE]
        for sample in samples:
            assert sample.extra_bytes is not None
            assert nbytes <= sample.extra_bytes <= nbytes + tables.GRANTED < 2 * nbytes


class TestRestorers:
    def test_restore_brings_everything_back(self, disk: Path) -> None:
        list(checkpoint_child.done(job("restoring.prepare", disk, TORCH)))
        for tool in RESTORERS:
            (sample,) = checkpoint_child.done(job("restoring.restore", disk, tool))
            assert (sample.work, sample.tool, sample.nbytes) == (RESTORE, tool, TrainingState(SMALL).nbytes)

    def test_wrong_restore_fails(self, disk: Path) -> None:
        list(checkpoint_child.done(job("restoring.prepare", disk, TORCH)))
        other = TrainingState(SMALL)
        other.change(0.5)
        with Checkpointer(disk / "of-fastio") as checkpointer:
            checkpointer.save(1, other.tree())
        with pytest.raises(ChildError, match="fastio restored something else than was saved"):
            list(checkpoint_child.done(job("restoring.restore", disk, FASTIO)))


class TestCommand:
    def test_measures_every_work_and_leaves_no_files(self, disk: Path, here: None) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        said = invoke("--size", "1.2MB", "--quick", "--dir", work, "--out", out).output
        told = json.loads((out / "checkpoint-quick.json").read_text())
        assert not told["failures"]
        counts = {(own["work"], own["tool"]): own["rounds"] for own in told["summaries"]}
        assert counts == (
            dict.fromkeys(((BLOCKED, tool) for tool in (COPY, FASTIO, PROCESS, DCP, DCP_CACHED, BUDGETED)), 2)
            | dict.fromkeys(((SLOWED, tool) for tool in SLOWING), 2)
            | {(SLOWED, ALONE): 2 * len(SLOWING)}
            | dict.fromkeys(((DURABLE, tool) for tool in (*SAVERS, disk_limit.TOOL)), 2)
            | dict.fromkeys(((work, tool) for work in (RANKS_SAVE, RANKS_LOAD) for tool in (DCP, FASTIO)), 1)
            | {(RANKS_SAVE, disk_limit.TOOL): 1}
            | {(BLOCKED_OF[count], tool): 2 for count in RANK_COUNTS for tool in (COPY, FASTIO, DCP_CACHED)}
            | {(STEP_OF[count], tool): 2 for count in RANK_COUNTS for tool in (FASTIO, DCP_CACHED, disk_limit.TOOL)}
            | dict.fromkeys(((RESHARD, tool) for tool in (DCP, FASTIO, disk_limit.TOOL)), 1)
            | dict.fromkeys(((RESTORE, tool) for tool in (TORCH, MAPPED, FASTIO, disk_limit.TOOL)), 1)
            | dict.fromkeys(((INCREMENTAL, tool) for tool in (FULL, FASTIO)), 2)
            | dict.fromkeys(
                ((work, tool) for work in (ROWS, COLUMNS) for tool in (DCP, DCP_SYNCED, FASTIO, disk_limit.TOOL)), 1
            )
        )
        assert {sample["nbytes"] for sample in told["samples"] if sample["work"] == DURABLE} == {
            TrainingState(shape_of(1_200_000)).nbytes
        }
        asked = [(goal["work"], goal["asked"]) for goal in told["findings"]["goals"]]
        assert set(asked) >= {
            *((BLOCKED, 0.95), (BLOCKED, 0.2), (DURABLE, 2.3)),
            *((RANKS_SAVE, 2.0), (RESTORE, 1.7), (INCREMENTAL, 5.0)),
            *((ROWS, 5.0), (COLUMNS, 5.0), (ROWS, 0.9), (COLUMNS, 0.9), (DURABLE, 0.9), (RESHARD, 0.8)),
            *((BLOCKED_OF[4], 0.95), (BLOCKED_OF[4], 0.5), (STEP_OF[2], 0.85), (STEP_OF[4], 0.85)),
        }
        memory = [goal["against"] for goal in told["findings"]["goals"] if goal["unit"] == "MiB"]
        assert memory == ["memory", "memory", "memory: one snapshot and 64 MiB", "memory: memory_budget and 64 MiB"]
        assert len(told["exhibits"]) == len(WORKS)
        assert "about" in said
        assert "Goals" in said
        assert not list(work.iterdir())

    def test_failed_tool_is_reported_and_others_continue(
        self, disk: Path, here: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried = []

        def fail(saver: Any) -> None:
            tried.append(saver)
            raise OSError("disk on fire")

        steps = checkpoint_runs.Runs.steps
        monkeypatch.setattr(savers.ByTorch, "save", fail)
        monkeypatch.setattr(
            checkpoint_runs.Runs,
            "steps",
            lambda runs: [step for step in steps(runs) if step.tool in (TORCH, DCP) and step.works != (RESTORE,)],
        )
        result = invoke("--size", "1MB", "--rounds", "2", "--json", "--dir", disk)
        told = json.loads(result.stdout)
        assert [(one["work"], one["tool"], one["reason"]) for one in told["failures"]] == [
            (DURABLE, TORCH, "ChildError: disk on fire")
        ]
        assert len(tried) == 1
        counts = {(own["work"], own["tool"]): own["rounds"] for own in told["summaries"]}
        assert counts == {(BLOCKED, DCP): 4, (DURABLE, DCP): 4}
        (durable,) = (one for one in told["exhibits"] if one["title"] == "Durable save")
        assert [row[:2] for row in durable["rows"] if row[0] == TORCH] == [[TORCH, "failed"]]
        assert not list(disk.iterdir())

    def test_reduced_size_is_noted(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("fastio_bench.checkpoint.command.available_memory", lambda: 8_000_000)
        monkeypatch.setattr(checkpoint_runs.Runs, "steps", lambda runs: [])
        told = json.loads(invoke("--json", "--dir", disk).stdout)
        assert told["settings"]["size"] == 2_000_000
        assert any("instead of 3.60 GB" in note for note in told["notes"])

    def test_ctrl_c_keeps_samples_and_leaves_no_files(self, disk: Path) -> None:
        out, work = disk / "out", disk / "work"
        work.mkdir()
        program = (
            "import os; os.sync = lambda: None\n"  # as all tests here
            "from fastio_bench.checkpoint import runs; runs.SAVES = 1000\n"
            "steps = runs.Runs.steps; runs.Runs.steps = lambda own: steps(own)[1:]\n"
            "take = runs.replace\n"
            "def told(*given, **changes):\n"
            "    print('sample', file=__import__('sys').stderr, flush=True); return take(*given, **changes)\n"
            "runs.replace = told\n"
            "from fastio_bench.checkpoint.options import checkpoint; checkpoint()"
        )
        options = ("--size", "1MB", "--dir", str(work), "--out", str(out))
        with open(disk / "complaints", "w+") as complaints:
            command = [sys.executable, "-c", program, *options]
            child = WarmPopen(command, stdout=subprocess.PIPE, stderr=complaints, text=True)
            pause = threading.Event()
            while child.poll() is None and "sample" not in (disk / "complaints").read_text():
                pause.wait(0.01)
            child.send_signal(signal.SIGINT)
            said, _ = child.communicate()
        assert child.returncode == 130, (disk / "complaints").read_text()
        assert "interrupted: what is shown" in said
        (written,) = out.glob("*.json")
        told = json.loads(written.read_text())
        assert told["interrupted"]
        assert {(sample["work"], sample["tool"]) for sample in told["samples"]} == {(DURABLE, TORCH)}
        assert not list(work.iterdir())
        assert not processes(child.pid)


class TestProcesses:
    def test_ranks_meet_with_a_relative_folder(self, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(disk)
        with workspace(Path(".")) as folder:
            assert folder.is_absolute()
            jobs = [job("ranks.run", folder, rank=rank, saves=1, world=2) for rank in range(2)]
            found = list(in_fresh_processes(jobs))
        assert {sample.work for sample in found if isinstance(sample, Sample)} == {RANKS_SAVE, RANKS_LOAD}

    def test_failing_rank_ends_both(self, disk: Path) -> None:
        jobs = [job("ranks.run", disk, rank=0, world=2), job("works.none", disk, rank=1, world=2)]
        with pytest.raises(ChildError, match="no attribute 'none'"):  # at once, not when the first gives up waiting
            list(in_fresh_processes(jobs))


class TestGoals:
    def test_goals_are_ratios_of_medians(self) -> None:
        seconds = {
            (BLOCKED, COPY): 0.18, (BLOCKED, FASTIO): 0.2, (BLOCKED, DCP): 2.0, (DURABLE, TORCH): 4.6,
            (DURABLE, FASTIO): 2.0, (RANKS_SAVE, DCP): 3.0, (RANKS_SAVE, FASTIO): 2.0,
        }  # fmt: skip
        samples = [
            Sample(work, "state", tool, 0, 400 * MIB, took, took, 410 * MIB if tool == FASTIO else None)
            for (work, tool), took in seconds.items()
        ]
        found = tables.goals(tables.summaries(samples))
        measured = [(goal.work, goal.against, round(goal.measured, 3), goal.met) for goal in found]
        assert measured == [
            (BLOCKED, COPY, 0.9, False),
            (DURABLE, TORCH, 2.3, True),
            (RANKS_SAVE, DCP, 1.5, False),
            (BLOCKED, f"{DCP}'s", 0.1, True),
            (DURABLE, "memory: one snapshot and 64 MiB", 410.0, True),
        ]

    def test_memory_goal_is_missed_above_the_allowance(self) -> None:
        def peaks(snapshot: int, budgeted: int, ours: int, theirs: int) -> list[bool]:
            samples = [
                Sample(DURABLE, "state", FASTIO, 0, 800 * MIB, 1.0, 1.0, snapshot * MIB),
                Sample(DURABLE, "state", BUDGETED, 0, 800 * MIB, 1.0, 1.0, budgeted * MIB),
                Sample(RESTORE, "state", FASTIO, 0, 800 * MIB, 1.0, 1.0, ours * MIB),
                Sample(RESTORE, "state", TORCH, 0, 800 * MIB, 1.0, 1.0, theirs * MIB),
            ]
            goals = tables.goals(tables.summaries(samples))
            return [goal.met for goal in goals if goal.unit == "MiB" or "memory" in goal.against]

        assert peaks(864, 164, 400, 800) == [True, True, True]
        assert peaks(865, 165, 401, 800) == [False, False, False]
