"""The handle of a save: its futures, its progress, and errors that were retrieved by it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import writing
from trainings import folder_of

STATE = {"tensor": torch.arange(1000)}


class Copied:
    """Data with a weak reference, which a failed write must not keep alive."""


def test_handle_tells_what_is_saved_and_how(tmp_path: Path, held: threading.Event) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(3, STATE)
        assert handle
        assert (handle.step, handle.path, handle.nbytes) == (3, str(folder_of(tmp_path, 3)), 8000)
        assert handle.staged.done()
        assert handle.staged.result() is None
        assert not handle.written.done()
        assert handle.progress == (0, 8000)
        assert handle.route is None
        assert not handle.written.cancel()
        with pytest.raises(concurrent.futures.TimeoutError):
            handle.written.result(timeout=0.01)
        assert repr(handle) == "<fastio SaveHandle of step 3: 7.81 KiB, 0 B of 7.81 KiB written>"
        held.set()
        result = handle.written.result(timeout=300)
        assert checkpointer.steps() == [3]
        assert isinstance(result, fastio.SaveResult)
        assert (result.nbytes, result.durable) == (8000, True)
        assert handle.written.exception() is None
        done, total = handle.progress
        assert done == total == (folder_of(tmp_path, 3) / "state.pt").stat().st_size
        assert handle.route == f"{result.tool} ({result.route})"
        assert repr(handle) == f"<fastio SaveHandle of step 3: 7.81 KiB, written by {handle.route}>"


def test_handle_of_a_synchronous_save_is_done(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, asynchronous=False) as checkpointer:
        handle = checkpointer.save(3, STATE)
        assert handle.staged.done()
        assert handle.written.done()
        assert handle.written.result().nbytes == 8000


def test_callbacks_see_a_step_that_is_there_and_do_not_delay_wait(tmp_path: Path) -> None:
    called, go = threading.Event(), threading.Event()
    seen = []

    def look(written: Any) -> None:
        seen.append((written.result().nbytes, Checkpointer(tmp_path, read_only=True).steps()))
        called.set()
        assert go.wait(20)

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(3, STATE).written.add_done_callback(look)
        checkpointer.wait()
        assert called.wait(20)
        go.set()
    assert seen == [(8000, [3])]


def test_futures_can_be_awaited(tmp_path: Path, held: threading.Event) -> None:
    async def train(checkpointer: Checkpointer) -> int:
        handle = checkpointer.save(3, STATE)
        await handle.staged
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(_wait(handle), 0.01)
        held.set()
        result: fastio.SaveResult = await handle.written
        return result.nbytes

    async def _wait(handle: fastio.SaveHandle) -> fastio.SaveResult:
        return await handle.written

    with Checkpointer(tmp_path) as checkpointer:
        assert asyncio.run(train(checkpointer)) == 8000


def test_skipped_save_is_false_and_its_futures_say_why(tmp_path: Path, held: threading.Event) -> None:
    with Checkpointer(tmp_path, when_busy="skip") as checkpointer:
        checkpointer.save(0, STATE)
        handle = checkpointer.save(1, STATE)
        assert not handle
        assert concurrent.futures.wait([handle.staged, handle.written], timeout=300).not_done == set()
        for future in (handle.staged, handle.written):
            with pytest.raises(fastio.CheckpointError, match=r"step 1 was skipped: .*when_busy='skip'"):
                future.result()
        assert handle.route is None
        assert repr(handle) == "<fastio SaveHandle of step 1: 0 B, skipped>"
        held.set()


@pytest.mark.parametrize("way", ["exception", "result", "callback", "await"])
def test_error_that_was_retrieved_from_the_handle_is_not_raised_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    _fail(monkeypatch)

    async def get(handle: fastio.SaveHandle) -> None:
        with pytest.raises(OSError, match="the disk is gone"):
            await handle.written

    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, STATE)
        if way == "exception":
            assert isinstance(handle.written.exception(), OSError)
        elif way == "result":
            with pytest.raises(OSError, match="the disk is gone"):
                handle.written.result()
        elif way == "callback":
            handle.written.add_done_callback(lambda written: written.exception())
            concurrent.futures.wait([handle.written])
        else:
            asyncio.run(get(handle))
        checkpointer.wait()
        monkeypatch.undo()
        assert checkpointer.save(2, STATE)
        checkpointer.wait()
        assert checkpointer.steps() == [2]


def test_error_that_was_not_retrieved_is_raised_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail(monkeypatch)
    checkpointer = Checkpointer(tmp_path)
    handle = checkpointer.save(1, STATE)
    concurrent.futures.wait([handle.written])  # retrieves nothing
    assert handle.route is None
    assert "failed" in repr(handle)
    with pytest.raises(OSError, match="the disk is gone"):
        checkpointer.save(2, STATE)
    assert isinstance(handle.written.exception(), OSError)
    checkpointer.close()
    assert os.listdir(tmp_path) == [".lock"]


def test_handle_of_a_failed_save_keeps_no_copy_of_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = []

    def fail(*_: Any) -> None:
        copied = Copied()
        kept.append(weakref.ref(copied))
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(writing, "save_layout", fail)
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, STATE)
        assert handle.written.exception() is not None
        gc.collect()
        assert [reference() for reference in kept] == [None]


def raises_in_a_child(call: Callable[[], object]) -> bool:
    """Whether the call, in a forked child, raises a CheckpointError within 20 s."""
    pid = os.fork()
    if pid == 0:
        status = 1
        signal.alarm(20)
        try:
            call()
        except fastio.CheckpointError:
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


def test_handle_cannot_be_waited_for_in_a_forked_child(tmp_path: Path, held: threading.Event) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, STATE)
        assert raises_in_a_child(handle.written.result)
        held.set()


def test_handle_cannot_be_awaited_in_a_forked_child(tmp_path: Path, held: threading.Event) -> None:
    async def wait() -> None:
        await handle.written

    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, STATE)
        assert raises_in_a_child(lambda: asyncio.run(wait()))
        held.set()


def test_callback_that_uses_the_checkpointer_is_refused_and_does_not_hang(
    tmp_path: Path, held: threading.Event
) -> None:
    errors: list[str] = []

    def use(_: object) -> None:
        for call in (checkpointer.close, lambda: checkpointer.save(2, STATE)):
            try:
                call()
            except fastio.CheckpointError as error:
                errors.append(str(error))

    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, STATE).written.add_done_callback(use)
        held.set()
        checkpointer.wait()
    assert len(errors) == 2
    assert "a callback of a save, which runs on the thread that writes, used the Checkpointer" in errors[0]


def _fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "the disk is gone")

    monkeypatch.setattr(writing, "save_layout", fail)
