"""The runner of the hour with a GPU, on items that need none, and its plan."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fastio_bench.gpu import host_weights, plan, runner
from fastio_bench.gpu.runner import Item, run
from hybrid_training import MODELS

HANGS = "import time; print('begun', flush=True); time.sleep(100)"
STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
print(f'{{"child": {child.pid}}}', flush=True)
print("begun", flush=True)
time.sleep(1000)
"""
ENDS_S = 30.0  # of items whose time ends once they have begun


def item(name: str, code: str, seconds: float = 60) -> Item:
    return Item(name, (sys.executable, "-c", code), seconds)


def run_all(tmp_path: Path, *items: Item, limit: float = 60) -> tuple[bool, list[dict[str, Any]], str]:
    """Whether all succeeded, the lines of the results, the log."""
    out = tmp_path / "results"
    out.mkdir()
    good = run(items, limit, out, tmp_path / "scratch", {"PYTHONFAULTHANDLER": "1"})
    lines = (out / "results.jsonl").read_text().splitlines()
    return good, [json.loads(line) for line in lines], (out / "log.txt").read_text()


def test_output_figures_and_files_are_kept(tmp_path: Path) -> None:
    code = "print('hello'); print('{\"speed\": 2}'); open('out/made', 'w').write('x'); open('lost', 'w')"
    good, (first, last), log = run_all(tmp_path, item("tests/one", code))
    assert good
    assert {**first, "seconds": 0} == {"item": "tests/one", "status": 0, "seconds": 0, "figures": [{"speed": 2}]}
    assert last == {"failed": [], "not reached": []}
    assert "hello\n" in log
    with tarfile.open(tmp_path / "results" / "files.tar") as archive:
        assert archive.getnames() == ["tests/one", "tests/one/made"]
    assert not (tmp_path / "scratch" / "tests" / "one").exists()


def test_failed_items_do_not_stop_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    items = (
        item("fails", "import sys; sys.exit('the reason')"),
        item("dies", "import os; os.kill(os.getpid(), 9)"),
        Item("missing", ("no-such-program-anywhere",)),
        item("works", ""),
    )
    good, lines, _ = run_all(tmp_path, *items)
    assert not good
    assert [line["status"] for line in lines[:2]] == [1, -9]
    assert lines[2]["status"].startswith("not started: ")
    assert lines[3]["status"] == 0
    assert lines[-1] == {"failed": ["fails", "dies", "missing"], "not reached": []}
    assert "    the reason\n" in capsys.readouterr().out


@pytest.fixture
def times_end_once_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item's time ends when its code has printed "begun", however long Python takes to start."""

    class Child(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if timeout != ENDS_S:
                return super().wait(timeout)
            while "\nbegun\n" not in (tmp_path / "results" / "log.txt").read_text():
                assert self.poll() is None
                time.sleep(0.01)
            raise subprocess.TimeoutExpired(self.args, timeout)

    monkeypatch.setattr(runner.subprocess, "Popen", Child)
    monkeypatch.setattr(runner, "_DYING_S", 60.0)


@pytest.mark.usefixtures("times_end_once_begun")
def test_item_is_ended_after_its_time_with_its_descendants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_INTERRUPTED_S", 0.5)
    good, (first, _), log = run_all(tmp_path, item("hangs", STUBBORN, ENDS_S))
    assert not good
    assert first["status"] == "ended after its 30 s"
    assert "Fatal Python error: Aborted" in log, "the stacks of its threads"
    stat = Path(f"/proc/{first['figures'][0]['child']}/stat")
    deadline = time.monotonic() + 300
    while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.usefixtures("times_end_once_begun")
def test_item_may_write_what_it_has_after_its_time(tmp_path: Path) -> None:
    code = f"try:\n    {HANGS}\nexcept KeyboardInterrupt: print('{{\"so far\": 1}}')"
    _, (first, _), log = run_all(tmp_path, item("measures", code, ENDS_S))
    assert (first["status"], first["figures"]) == ("ended after its 30 s", [{"so far": 1}])
    assert "Aborted" not in log


def test_total_time_is_kept_and_the_rest_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "_LEAST_S", 0.1)
    good, lines, _ = run_all(tmp_path, item("hangs", HANGS), item("later", ""), item("last", ""), limit=1)
    assert lines[0]["status"] == "ended after its 1 s"
    assert not good
    assert lines[-1] == {"failed": ["hangs"], "not reached": ["later", "last"]}


def start(repository: Path, out: Path, *arguments: str) -> subprocess.Popen[str]:
    """The runner as it is started: in the source tree, by a Python without packages."""
    command = [sys.executable, "-S", "-m", "fastio_bench.gpu", f"--out={out}", f"--dir={out / 'dir'}", *arguments]
    return subprocess.Popen(command, cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_command_line_lists_items_and_refuses_unknown_ones(repository: Path, tmp_path: Path) -> None:
    with start(repository, tmp_path, "--list") as started:
        assert "1: at most 540 s\n    nvidia-smi, 20 s\n" in started.communicate()[0]
    with start(repository, tmp_path, "no-such-item") as started:
        assert started.communicate()[0] == "no command or item is called no-such-item: --list shows them\n"
    assert started.returncode == 1


def test_items_import_the_carried_wheels(repository: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "carried-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("fastio_bench/__init__.py", "")
        wheel.writestr("fastio_bench/gpu/__init__.py", "")
        wheel.writestr("fastio_bench/gpu/pinning.py", "print('{\"carried\": true}')")
        wheel.writestr("carried-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: carried\nVersion: 1\n")
        wheel.writestr("carried-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("carried-1.dist-info/RECORD", "")
    with start(repository, tmp_path, f"--wheels={tmp_path}", "pinning") as started:
        said, _ = started.communicate()
    assert started.returncode == 0, said
    assert json.loads((tmp_path / "results.jsonl").read_text().splitlines()[0])["figures"] == [{"carried": True}]


def test_terminated_runner_ends_its_item(repository: Path, tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    with start(repository, tmp_path, "pinning") as started:  # it imports torch for a while
        while not log.exists() or "==== pinning" not in log.read_text():
            assert started.poll() is None
            time.sleep(0.01)
        started.terminate()
        assert started.wait() == 128 + signal.SIGTERM
    assert os.listdir(tmp_path / "dir") == []
    assert [pid for pid in os.listdir("/proc") if pid.isdigit() and working_folder(pid).startswith(str(tmp_path))] == []


def working_folder(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/cwd")
    except OSError:  # it has ended, or is another user's
        return ""


def test_plan_has_all_tests_that_need_a_gpu(repository: Path) -> None:
    marks = ("mark.gpu", "mark.cuda")
    tests = repository / "tests"
    marked = {path for path in tests.rglob("test_*.py") if any(mark in path.read_text() for mark in marks)}
    marked -= {Path(__file__)}
    named = {tests / path for path in (*plan.TRUTH_TESTS, *plan.LATER_TESTS)}
    assert named == marked


def test_plan_names_each_item_once_and_only_what_exists(repository: Path) -> None:
    commands = plan.commands(repository)
    items = [item for command in commands.values() for item in command.items]
    assert len({item.name for item in items}) == len(items)
    modules = {part for item in items for part in item.command if part.startswith("fastio_bench.")}
    assert {f"fastio_bench.gpu.{name}" for name in ("pinning", "csr", "save_load")} <= modules
    for module in modules:
        assert callable(getattr(importlib.import_module(module), "main", None)) or module.endswith("gpu_offload")
    assert all(command.seconds <= 540 for command in commands.values())


def test_plan_has_each_layer_and_each_model_of_the_hybrid_tests() -> None:
    assert set(plan.HOST_LAYERS) == set(host_weights.LAYERS)
    assert set(plan.HYBRID_MODELS) == set(MODELS)
