"""SIGINT, SIGTERM and SIGHUP at random moments of a measurement, sent to the process group."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
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

TRIES = 8
PATIENCE = 120  # seconds
# Imports once, then runs each line's command in a process of its own that leads a session, as a terminal's shell does.
# Sizes are tiny, and training goes on until it is interrupted.
NURSERY = """
import atexit, faulthandler, importlib, json, os, signal, sys
from dataclasses import replace

import torch._dynamo  # the first optimizer imports it, which takes seconds

from fastio_bench import cli
from fastio_bench.commands import SUBCOMMANDS
from fastio_bench.contend import command as contend_command
from fastio_bench.contend import contention
from fastio_bench.machine import bandwidth_loads
from fastio_bench.tools import command as tools_command
from fastio_bench.workloads.training_models import Size

for module, _ in SUBCOMMANDS.values():
    importlib.import_module(f"fastio_bench.{module}")
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_DFL)  # whoever runs the tests in a shell's background hands on ignored ones
bandwidth_loads.LEAST_NBYTES, bandwidth_loads._CACHES, bandwidth_loads._WINDOW = 8 << 20, 0, 0.02
contention._ALONE, contention.WORKS = 0.01, ()
contend_command.QUICK_BATCH, contend_command.QUICK_SIZE, contention._LEARNING = 1, Size("transformer", 8, 2, 64), 1
small = tuple(replace(model, batch=4, depth=2, width=16) for model in tools_command._QUICK_MODELS)
tools_command._QUICK_MODELS = small

for line in sys.stdin:
    arguments, said = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        log = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(log, 1), os.dup2(log, 2)
        faulthandler.enable()
        sys.argv = ["fastio-bench", *arguments]
        try:
            cli.main()
        except SystemExit as end:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            os._exit(end.code)  # the rest of Python's exit frees memory, which takes seconds
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
TRAINS = {
    "tools": ("--quick", "--seconds", "600"),
    "contend": ("--quick", "--rounds", "1000"),
}


class Nursery:
    """Runs small commands in forked processes and reports how they ended."""

    def __init__(self, folder: Path) -> None:
        pipe = subprocess.PIPE
        self.trace = folder / "trace.csv"
        rows = [
            Row("pt save", nbytes, {"a": nbytes / 1e9, "b": nbytes / 5e8})
            for nbytes in range(1 << 16, 1 << 20, 1 << 14)
        ]
        self.trace.write_text(trace.text(rows, ["made up"]))
        variables = {**os.environ, "FASTIO_DICTIONARY_DIR": str(folder / "dictionaries")}
        command = [sys.executable, "-c", NURSERY]
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=variables)

    def start(self, arguments: list[str], said: Path) -> int:
        """The process number, which is also that of its session and group."""
        assert self._process.stdin is not None
        print(json.dumps([arguments, str(said)]), file=self._process.stdin, flush=True)
        return self._number()

    def status(self) -> int:
        """The exit status, once it has ended."""
        return self._number()

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    own = Nursery(tmp_path_factory.mktemp("nursery"))
    yield own
    own.close()


def trains(pid: int, work: Path) -> bool:
    """Whether a process has feature maps in files without a name below the folder."""
    try:
        links = [os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:  # one of them has just been closed
        return False
    return any(link.startswith(str(work)) for link in links)


def interrupted(nursery: Nursery, command: str, number: signal.Signals, pause: float, folder: Path) -> None:
    """Start the command, send its group the signal that many seconds after training began, and see how it ends."""
    work, said = folder / "work", folder / "said"
    work.mkdir()
    options = (*TRAINS[command], "--trace", str(nursery.trace)) if command == "tools" else TRAINS[command]
    pid = nursery.start([command, *options, "--dir", str(work)], said)
    while not trains(pid, work):
        assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z", said.read_text()
        time.sleep(0.005)
    time.sleep(pause)
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    os.killpg(pid, number)
    hung = threading.Timer(PATIENCE, os.killpg, (pid, signal.SIGABRT))  # faulthandler then prints where it waits
    hung.start()
    status, text = nursery.status(), said.read_text()
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
    command: str, seed: int, nursery: Nursery, tmp_path: Path
) -> None:
    interrupted(nursery, command, signal.SIGINT, random.Random(seed).uniform(0, 0.3), tmp_path)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("command", TRAINS)
def test_sigterm_or_sighup_during_training_keeps_results(
    command: str, number: signal.Signals, nursery: Nursery, tmp_path: Path
) -> None:
    interrupted(nursery, command, number, 0.1, tmp_path)


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
