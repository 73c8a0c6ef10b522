"""The progress bar: it exists during a transfer, and ends with it however the transfer ends."""

from __future__ import annotations

import errno
import io
import signal
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

LARGE = {"large": torch.ones(40 << 20)}


def bar_threads() -> list[threading.Thread]:
    """Threads that draw bars."""
    return [thread for thread in threading.enumerate() if "Refresh" in type(thread).__name__]


def bar_threads_end() -> bool:
    """Whether these threads end within 10 seconds: rich does not join them."""
    end = time.monotonic() + 10
    while bar_threads() and time.monotonic() < end:
        time.sleep(0.001)
    return not bar_threads()


@pytest.fixture(autouse=True)
def check_bar_threads_end() -> Iterator[None]:
    yield
    assert bar_threads_end()


def test_save_and_load_draw_a_bar_with_the_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fastio.save(LARGE, tmp_path / "it.pt", progress=True)
    assert "saving it.pt" in (said := capsys.readouterr().out)
    assert "167.8/167.8 MB" in said
    fastio.load(tmp_path / "it.pt", progress=True)
    assert "loading it.pt" in (said := capsys.readouterr().out)
    assert "167.8/167.8 MB" in said


def test_short_checkpoint_saves_draw_no_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastio.checkpoint.delayed_progress._SECONDS", 3600.0)
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"tensor": torch.ones(3)})
        checkpointer.restore()
    assert capsys.readouterr().out == ""


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


def test_a_failed_save_ends_the_bar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert bar_threads()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(fastio.TransferError):
        fastio.save(LARGE, tmp_path / "it.pt", progress=True)


def test_two_saves_with_bars_run_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        paths = [tmp_path / "one.pt", tmp_path / "other.pt"]
        results = list(threads.map(lambda path: fastio.save(LARGE, path, progress=True), paths))
    assert [result.path for result in results] == list(map(str, paths))


@pytest.mark.usefixtures("progress_at_once")
def test_checkpoint_save_and_restore_draw_bars(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        checkpointer.save(3, LARGE)
        checkpointer.wait()
        assert bar_threads_end()
        assert "saving step 3" in capsys.readouterr().out
        checkpointer.restore()
        assert "restoring step 3" in capsys.readouterr().out


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
