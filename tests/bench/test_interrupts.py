"""SIGINT, SIGTERM and SIGHUP at random moments of a measurement, sent to the process group."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benching import processes
from fastio_bench.harness import interrupts
from fastio_bench.harness.children import started
from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.run_record import Report, interruptible
from fastio_bench.tools import trace
from fastio_bench.tools.trace import Row
from warm_python import WarmPopen

TRIES = 8
PATIENCE = 120  # seconds
# Sizes are tiny, and training goes on until it is interrupted.
SMALL = """
import faulthandler, signal, sys
from dataclasses import replace

from fastio_bench import cli
from fastio_bench.contend import command as contend_command
from fastio_bench.contend import contention
from fastio_bench.machine import bandwidth_loads
from fastio_bench.tools import command as tools_command
from fastio_bench.workloads.training_models import Size

for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # whoever runs the tests in a shell's background hands on ignored ones
bandwidth_loads.LEAST_NBYTES, bandwidth_loads._CACHES, bandwidth_loads._WINDOW = 8 << 20, 0, 0.02
contention._ALONE, contention.WORKS = 0.01, ()
contend_command.QUICK_BATCH, contend_command.QUICK_SIZE, contention._LEARNING = 1, Size("transformer", 8, 2, 64), 1
small = tuple(replace(model, batch=4, depth=2, width=16) for model in tools_command._QUICK_MODELS)
tools_command._QUICK_MODELS = small
faulthandler.enable()
sys.argv[0] = "fastio-bench"
cli.main()
"""
TRAINS = {
    "tools": ("--quick", "--seconds", "600"),
    "contend": ("--quick", "--rounds", "1000"),
}


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording that ``fastio-bench tools`` replays."""
    path = tmp_path_factory.mktemp("recording") / "trace.csv"
    rows = [
        Row("pt save", nbytes, {"a": nbytes / 1e9, "b": nbytes / 5e8}) for nbytes in range(1 << 16, 1 << 20, 1 << 14)
    ]
    path.write_text(trace.text(rows, ["made up"]))
    return path


def trains(pid: int, work: Path) -> bool:
    """Whether a process has feature maps in files without a name below the folder."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # one of them has just been closed
        return False
    return any(link.startswith(str(work)) for link in links)


def interrupted(recording: Path, command: str, number: signal.Signals, pause: float, folder: Path) -> None:
    """Start the command, send its group the signal that many seconds after training began, and see how it ends."""
    work, said = folder / "work", folder / "said"
    work.mkdir()
    options = (*TRAINS[command], "--trace", str(recording)) if command == "tools" else TRAINS[command]
    with open(said, "w") as log:
        child = WarmPopen(
            [sys.executable, "-c", SMALL, command, *options, "--dir", str(work)],
            stdout=log,
            stderr=log,
            env={**os.environ, "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries")},
        )
    pid = child.pid
    while not trains(pid, work):
        assert child.poll() is None, said.read_text()
        time.sleep(0.005)
    time.sleep(pause)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.killpg(pid, number)
    hung = threading.Timer(PATIENCE, os.killpg, (pid, signal.SIGABRT))  # faulthandler then prints where it waits
    hung.start()
    status, text = child.wait(), said.read_text()
    hung.cancel()
    assert status == interrupts.STATUS, text
    assert "interrupted: what is shown" in text
    assert "Traceback" not in text
    assert "Exception ignored" not in text
    assert "other processes" not in text.partition("interrupted: ")[2]  # a load process that died would be reported
    assert not list(work.iterdir())
    assert not [child for child in (str(pid), *children) if processes(int(child))]


class Interrupting:
    """Raises SIGINT in its destructor."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("seed", range(TRIES))
@pytest.mark.parametrize("command", TRAINS)
def test_ctrl_c_during_training_exits_130_and_keeps_results(
    command: str, seed: int, recording: Path, tmp_path: Path
) -> None:
    interrupted(recording, command, signal.SIGINT, random.Random(seed).uniform(0, 0.3), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("command", TRAINS)
def test_sigterm_or_sighup_during_training_keeps_results(
    command: str, number: signal.Signals, recording: Path, tmp_path: Path
) -> None:
    interrupted(recording, command, number, 0.1, tmp_path)


def test_signal_lost_in_a_destructor_ends_the_run_at_the_next_outcome(tmp_path: Path) -> None:
    report = Report("io", tmp_path, {})

    def outcomes() -> Iterator[Failure]:
        yield Failure("save", "a", "before", 0, "")
        Interrupting()
        yield Failure("save", "a", "after", 0, "")

    with interruptible(report):
        for _ in report.take(outcomes()):
            pass
    assert report.interrupted
    assert [failure.tool for failure in report.failures] == ["before"]


def test_signal_lost_after_the_last_outcome_is_raised_at_the_end(tmp_path: Path) -> None:
    report = Report("io", tmp_path, {})
    with interruptible(report):
        Interrupting()
    assert report.interrupted


def test_signal_before_the_measurement_ends_the_run_at_the_first_outcome(tmp_path: Path) -> None:
    report = Report("io", tmp_path, {})
    with interrupts.undisturbed():
        signal.raise_signal(signal.SIGINT)
        with interruptible(report):
            for _ in report.take([Failure("save", "a", "first", 0, "")]):
                pass
        signal.raise_signal(signal.SIGINT)
    assert report.interrupted
    assert not report.failures


def test_handled_signal_does_not_stop_the_output(tmp_path: Path) -> None:
    report = Report("io", tmp_path, {})
    with interrupts.heeded():
        with interrupts.undisturbed():
            with interruptible(report):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        with started(["true"]) as child:
            pass
    assert report.interrupted
    assert child.returncode == 0


def test_ctrl_c_after_a_start_kills_the_child(tmp_path: Path) -> None:
    """With its own child, whose memory takes a while to be freed after the kill."""
    report, pids, ready = Report("io", tmp_path, {}), list[int](), tmp_path / "ready"
    held = f"import time, pathlib; held = b'x' * (1 << 29); pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    command = [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {held!r}])"]
    with interruptible(report), started(command) as child:
        pids.append(child.pid)
        while not ready.exists():
            time.sleep(0.01)
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            pids.append(os.getpid())
        pids.clear()
    assert report.interrupted
    assert pids[1] == os.getpid()
    assert not processes(pids[0])
