"""The bar: it is there for the time of a transfer, however that ends."""

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


def refreshing() -> list[threading.Thread]:
    """Threads that draw bars."""
    return [thread for thread in threading.enumerate() if "Refresh" in type(thread).__name__]


def none_stays() -> bool:
    """Whether they end, soon: rich does not wait for them."""
    end = time.monotonic() + 10
    while refreshing() and time.monotonic() < end:
        time.sleep(0.001)
    return not refreshing()


@pytest.fixture(autouse=True)
def no_bar_stays() -> Iterator[None]:
    yield
    assert none_stays()


def test_a_save_and_a_load(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fastio.save(LARGE, tmp_path / "it.pt", progress=True)
    assert "saving it.pt" in (said := capsys.readouterr().out)
    assert "167.8/167.8 MB" in said
    fastio.load(tmp_path / "it.pt", progress=True)
    assert "loading it.pt" in (said := capsys.readouterr().out)
    assert "167.8/167.8 MB" in said


def test_what_is_over_at_once_draws_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        for step in range(3):
            checkpointer.save(step, {"tensor": torch.ones(3)})
        checkpointer.restore()
    assert capsys.readouterr().out == ""


def test_ctrl_c(tmp_path: Path) -> None:
    def hear(number: int, frame: FrameType | None) -> None:
        if refreshing():
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


def test_what_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        assert refreshing()
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(fastio.TransferError):
        fastio.save(LARGE, tmp_path / "it.pt", progress=True)


def test_two_at_a_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        paths = [tmp_path / "one.pt", tmp_path / "other.pt"]
        results = list(threads.map(lambda path: fastio.save(LARGE, path, progress=True), paths))
    assert [result.path for result in results] == list(map(str, paths))


@pytest.mark.usefixtures("progress_at_once")
def test_a_checkpoint_and_its_restoring(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Checkpointer(tmp_path, progress=True) as checkpointer:
        checkpointer.save(3, LARGE)
        checkpointer.wait()
        assert none_stays()
        assert "saving step 3" in capsys.readouterr().out
        checkpointer.restore()
        assert "restoring step 3" in capsys.readouterr().out


def test_what_is_no_progress(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="progress=3: expected None, True or a function"):
        fastio.save(LARGE, tmp_path / "it.pt", progress=3)
    with pytest.raises(TypeError, match="progress='yes'"):
        Checkpointer(tmp_path, progress="yes")
    fastio.save(LARGE, tmp_path / "it.pt", progress=False)


def test_a_function_that_is_false() -> None:
    class Told(list[tuple[int, int]]):
        def __call__(self, done: int, total: int) -> None:
            self.append((done, total))

    told = Told()
    fastio.save({"small": torch.ones(100)}, io.BytesIO(), progress=told)
    assert told
