"""WorkThread, JoinOnExit and Latch when the starting or waiting thread is interrupted."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType

import pytest
import torch

import fastio
from fastio._native import Control, JoinOnExit, Latch
from fastio.checkpoint import background_write
from fastio.engine import background_job
from fastio.runtime.interrupt_safe_thread import WorkThread
from interrupting import Interrupts


@pytest.fixture
def interrupt() -> Iterator[Callable[[float], None]]:
    """A function that raises KeyboardInterrupt after so many seconds."""

    def hear(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, hear)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds) and None
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_an_interrupted_wait_does_not_end_the_thread(interrupt: Callable[[float], None]) -> None:
    may_end, log = threading.Event(), []

    def work() -> None:
        may_end.wait()
        log.append("ended")

    thread = WorkThread(work)
    assert not thread.is_running
    thread.start()
    for _ in range(3):
        interrupt(0.01)
        with pytest.raises(KeyboardInterrupt):
            thread.wait()
        assert thread.is_running
    assert not thread.wait(0.01)
    may_end.set()
    assert thread.wait()
    assert log == ["ended"]
    assert not thread.is_running
    assert thread.has_begun


def test_join_on_exit_does_not_exit_before_the_thread_ends(interrupt: Callable[[float], None]) -> None:
    control, log = Control(), []

    def work() -> None:
        while not control.cancelled:
            time.sleep(0.001)
        time.sleep(0.1)  # interrupts come meanwhile
        log.append("ended")

    def call() -> None:
        thread = WorkThread(work)
        with JoinOnExit(control, thread.start):
            thread.wait()

    interrupts = Interrupts(0.02, again=0.001)
    for _ in range(3):
        control, log = Control(), []
        assert interrupts.during(call)
        assert log == ["ended"]
    call()  # it is cancelled already
    assert log == ["ended", "ended"]


def test_join_on_exit_joins_when_its_start_function_raises(interrupt: Callable[[float], None]) -> None:
    control, log = Control(), []

    def work() -> None:
        time.sleep(0.05)
        log.append(control.cancelled)

    def begin(within: JoinOnExit) -> None:
        WorkThread(work).start(within)
        raise KeyError

    with pytest.raises(KeyError), JoinOnExit(control, begin):
        pytest.fail("it was entered")
    assert log == [True]


@pytest.mark.parametrize(("name", "longest"), [("", 4e-5), ("of a test", 2e-4)])
def test_has_begun_is_right_after_an_interrupted_start(
    name: str, longest: float, interrupt: Callable[[float], None]
) -> None:
    interrupts, begun = Interrupts(longest), 0
    gc.collect()  # a collection during a start could run callbacks that swallow the interrupt
    gc.disable()
    try:
        while interrupts.came < 100 or begun < 100:
            log: list[str] = []
            thread = WorkThread(lambda log=log: log.append("ran"), name)  # type: ignore[misc]
            with JoinOnExit(Control(), lambda within, thread=thread: interrupts.during(partial(thread.start, within))):  # type: ignore[misc]
                knew = thread.has_begun
            begun += knew
            assert log == (["ran"] if knew else [])  # nothing can run later
    finally:
        gc.enable()


class Dies(WorkThread):
    """A thread that lacks the memory for its first call."""

    def _begin(self, sign: object) -> None:
        raise MemoryError


@pytest.fixture
def deaths(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The types of uncaught errors in threads."""
    errors: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: errors.append(what.exc_type))
    return errors


@pytest.mark.parametrize("name", ["", "of a test"])
def test_a_thread_that_dies_before_its_work_is_not_waited_for(name: str, deaths: list[object]) -> None:
    thread = Dies(lambda: pytest.fail("it ran"), name)
    with JoinOnExit(Control(), thread.start):
        assert thread.wait()
    assert thread.has_begun
    assert not thread.is_running
    assert deaths == [MemoryError]


def test_waiter_does_the_work_if_the_transfers_thread_dies(
    monkeypatch: pytest.MonkeyPatch, deaths: list[object]
) -> None:
    monkeypatch.setattr(background_job, "WorkThread", Dies)
    reports: list[tuple[int, int]] = []
    with background_job.under_way(lambda: "done", Control(), background_job.WORTH_A_THREAD) as one:
        assert one.wait(lambda *report: reports.append(report)) == "done"
    assert reports[-1] == (background_job.WORTH_A_THREAD, background_job.WORTH_A_THREAD)
    assert deaths == [MemoryError]


def test_a_checkpoint_whose_thread_dies_raises_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: list[object]
) -> None:
    with fastio.Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(0, {"tensor": torch.zeros(3)})
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(background_write, "WorkThread", Dies)
            checkpointer.save(1, {"tensor": torch.zeros(3)})
            with pytest.raises(fastio.CheckpointError, match="no memory"):
                checkpointer.wait()
        assert checkpointer.steps() == [0]
        checkpointer.save(2, {"tensor": torch.zeros(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [0, 2]
    assert deaths == [MemoryError]


def test_a_chunked_checkpoint_whose_thread_dies_raises_from_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deaths: list[object]
) -> None:
    state = {"large": torch.ones(33 << 20, dtype=torch.uint8)}
    with fastio.Checkpointer(tmp_path, memory_budget="32MiB") as checkpointer:
        with monkeypatch.context() as patch:
            patch.setattr(background_write, "WorkThread", Dies)
            with pytest.raises(fastio.CheckpointError, match="no memory"):
                checkpointer.save(0, state)
        checkpointer.save(1, state)
        checkpointer.wait()
        assert checkpointer.steps() == [1]
    assert deaths == [MemoryError]


def test_a_forked_child_does_not_wait_for_the_thread() -> None:
    may_end = threading.Event()
    thread = WorkThread(lambda: may_end.wait() and None)
    with JoinOnExit(Control(), thread.start):
        child = os.fork()
        if child:
            assert os.waitpid(child, 0)[1] == 0
            assert thread.is_running
            may_end.set()
            assert thread.wait()
    if not child:
        os._exit(0 if thread.wait() else 1)


def test_latch_releases_all_waiters_and_opens_twice() -> None:
    latch = Latch()
    assert not latch.wait(0.01)
    waiting = [threading.Thread(target=latch.wait) for _ in range(5)]
    for one in waiting:
        one.start()
    latch.open()
    latch.open()
    for one in waiting:
        one.join(10)
        assert not one.is_alive()
    assert latch.wait()
