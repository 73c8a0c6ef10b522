"""The progress bar: it exists during a transfer, and ends with it however the transfer ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

import pytest
import torch

import fastio
from fastio.checkpoint import Checkpointer
from fastio.progress import shown
from warm_python import WarmPopen

LARGE = {"large": torch.ones(40 << 20)}


def bar_threads() -> list[threading.Thread]:
    """Threads that draw bars."""
    return [thread for thread in threading.enumerate() if "Refresh" in type(thread).__name__]


def bar_threads_end() -> bool:
    """Whether these threads end within 10 seconds: rich does not join them."""
    end = time.monotonic() + 300
    while bar_threads() and time.monotonic() < end:
        time.sleep(0.001)
    return not bar_threads()


@pytest.fixture(autouse=True)
def check_bar_threads_end() -> Iterator[None]:
    yield
    assert bar_threads_end()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bars are drawn, though stderr is none."""
    monkeypatch.setattr("fastio.progress._has_terminal", lambda: True)


@pytest.mark.usefixtures("terminal")
def test_save_and_load_draw_a_bar_with_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fastio.save(LARGE, tmp_path / "it.pt", progress=True)
    assert "saving it.pt" in (said := capsys.readouterr().err)
    assert "167.8/167.8 MB" in said
    fastio.load(tmp_path / "it.pt", progress=True)
    assert "loading it.pt" in (said := capsys.readouterr().err)
    assert "167.8/167.8 MB" in said


def test_without_a_terminal_there_is_one_line_at_the_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fastio.save(LARGE, tmp_path / "it.pt", progress=True)
    fastio.load(tmp_path / "it.pt", progress=True)
    said = capsys.readouterr()
    assert said.out == ""
    end = r"160 MiB in [\d.]+ s, [\d,]+ MB/s\n"
    assert re.fullmatch(rf"saving it\.pt: {end}loading it\.pt: {end}", said.err)


def test_long_work_without_a_terminal_prints_ever_fewer_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr("fastio.progress.time.monotonic", lambda: now)
    with shown(True, "saving it.pt") as tell:
        assert tell is not None
        for second in range(36_000):  # ten hours, ten times a second
            now = 1000.0 + second
            tell(second << 20, 36_000 << 20)
        now = 37_000.0
        tell(36_000 << 20, 36_000 << 20)
    first, *_, last = lines = capsys.readouterr().err.splitlines()
    assert first == "saving it.pt: 5 MiB of 35.2 GiB (0%), 1 MB/s, 9 h 59 min left"
    assert last == "saving it.pt: 35.2 GiB in 10 h 0 min, 1 MB/s"
    assert 500 < len(lines) < 700


SAVE = """
import os, signal, sys, torch, fastio
signal.signal(signal.SIGPIPE, signal.SIG_IGN if sys.argv[2] == "ignore" else signal.getsignal(signal.SIGPIPE))
fastio.save({"large": torch.ones(8 << 20)}, sys.argv[1], progress=True)
fastio.load(sys.argv[1], progress=True)
with fastio.Checkpointer(sys.argv[1] + ".run", progress=True) as checkpointer:
    checkpointer.save(1, {"large": torch.ones(8 << 20)})
os._exit(7)  # without a flush of what could not be written
"""


def save_in_a_process(folder: Path, stderr: int | None) -> int:
    if stderr is None:
        command = [sys.executable, "-P", "-c", SAVE, str(folder / "it.pt"), "ignore"]
        return subprocess.run(["sh", "-c", 'exec "$@" 2>&-', "sh", *command], check=False, timeout=600).returncode
    with WarmPopen([sys.executable, "-c", SAVE, str(folder / "it.pt"), "ignore"], stderr=stderr) as process:
        return process.wait()


def test_a_pipe_without_a_reader_never_ends_the_work(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    assert save_in_a_process(tmp_path, writer) == 7
    os.close(writer)


def test_a_closed_stderr_never_ends_the_work(tmp_path: Path) -> None:
    assert save_in_a_process(tmp_path, None) == 7


def test_a_terminal_that_is_gone_never_ends_the_work(tmp_path: Path) -> None:
    main, terminal = os.openpty()
    os.close(main)
    assert save_in_a_process(tmp_path, terminal) == 7
    os.close(terminal)


@pytest.mark.parametrize("term", ["tmux-256color", "screen", "xterm-256color"])
def test_a_bar_fits_into_80_columns(tmp_path: Path, term: str) -> None:
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    folder = tmp_path / ("checkpoint-of-a-large-language-model-" * 3)
    folder.mkdir()
    path = folder / f"{'a-long-name-of-a-file-' * 4}.pt"
    hidden = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    code = "import sys, torch, fastio; fastio.save({'w': torch.ones(64 << 20)}, sys.argv[1], progress=True)"
    command = [sys.executable, "-c", code, str(path)]
    with WarmPopen(command, stderr=terminal, env={**hidden, "TERM": term}) as process:
        os.close(terminal)
        said = b""
        with contextlib.suppress(OSError):  # EIO: the other end is closed
            while piece := os.read(main, 1 << 16):
                said += piece
    os.close(main)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said.decode())
    lines = [line for line in re.split(r"[\r\n]+", text) if line.strip()]
    assert re.search(r"268\.\d/268\.\d MB", lines[-1])
    assert all(len(line.rstrip()) <= 80 and line.startswith("saving a-long-name") for line in lines), lines
    assert any(re.search(r"\d:\d\d|--:--", line) for line in lines), lines


def test_short_checkpoint_saves_draw_no_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.engine.delayed_progress._SECONDS", 3600.0)
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"tensor": torch.ones(3)})
        checkpointer.restore()
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("terminal")
def test_keyboard_interrupt_ends_the_bar(tmp_path: Path) -> None:
    def hear(number: int, frame: FrameType | None) -> None:
        if bar_threads():
            signal.setitimer(signal.ITIMER_REAL, 0)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, hear)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with pytest.raises(KeyboardInterrupt):
            save_again_and_again(tmp_path / "it.pt")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def save_again_and_again(path: Path) -> None:
    for _ in range(100):
        fastio.save(LARGE, path, progress=True)


@pytest.mark.usefixtures("terminal")
def test_a_failed_save_ends_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert bar_threads()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(fastio.TransferError):
        fastio.save(LARGE, tmp_path / "it.pt", progress=True)


@pytest.mark.usefixtures("terminal")
def test_two_saves_with_bars_run_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        paths = [tmp_path / "one.pt", tmp_path / "other.pt"]
        results = list(threads.map(lambda path: fastio.save(LARGE, path, progress=True), paths))
    assert [result.path for result in results] == list(map(str, paths))


@pytest.mark.usefixtures("progress_at_once", "terminal")
def test_checkpoint_save_and_restore_draw_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        checkpointer.save(3, LARGE)
        checkpointer.wait()
        assert bar_threads_end()
        assert "saving step 3" in capsys.readouterr().err
        checkpointer.restore()
        assert "restoring step 3" in capsys.readouterr().err


def test_an_invalid_progress_argument_is_a_type_error(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="progress=3: expected None, True or a function"):
        fastio.save(LARGE, tmp_path / "it.pt", progress=3)
    with pytest.raises(TypeError, match="progress='yes'"):
        Checkpointer(tmp_path, progress="yes")
    fastio.save(LARGE, tmp_path / "it.pt", progress=False)


def test_progress_accepts_a_callable_that_is_falsy() -> None:
    class Reports(list[tuple[int, int]]):
        def __call__(self, done: int, total: int) -> None:
            self.append((done, total))

    reports = Reports()
    fastio.save({"small": torch.ones(100)}, io.BytesIO(), progress=reports)
    assert reports
