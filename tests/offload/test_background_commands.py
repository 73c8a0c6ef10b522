"""Transfers in the background: an interrupt loses none, and an error of a read is kept until its tensor is needed."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from functools import partial
from pathlib import Path

import pytest
import torch

import fastio
from fastio.errors import TransferError
from fastio.offload.stores.background_commands import BackgroundCommands, Command
from fastio.offload.stores.tool_file import ToolFile
from interrupting import interrupted_after
from offloading import mlp, same, trained


def test_an_interrupted_wait_leaves_a_command_that_can_be_waited_for() -> None:
    ran: list[int] = []
    commands = BackgroundCommands(0)  # as where the system refuses threads
    command = Command(lambda: ran.append(1), reads=True)
    commands.start()
    commands.put(command)
    assert command.claim()  # and an interrupt before it runs
    commands.wait(command)
    assert ran == [1]
    assert not command.claim()
    commands.close()


def test_what_another_thread_runs_is_waited_for() -> None:
    begun, go = threading.Event(), threading.Event()
    commands = BackgroundCommands(1)

    def work() -> None:
        begun.set()
        go.wait()

    command, queued = Command(work, reads=False), Command(lambda: None, reads=False)
    for one in (command, queued):
        commands.start()
        commands.put(one)
    begun.wait()
    threading.Timer(0.05, go.set).start()
    commands.close()
    assert command.ended.is_open
    assert queued.ended.is_open


def test_a_read_that_fails_while_memory_is_made_free_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its error is told once by the store; the tensor must not be taken for one that was read."""
    model, loss = mlp()
    plain = trained(model, loss)
    offload = fastio.Offload(model, store=fastio.offload.ToolStore(tmp_path), policy="all", budget="1MiB")
    real, failures = ToolFile.fetch, [1]

    def fetch(self: ToolFile, *given: object) -> object:
        if failures:
            failures.pop()
            raise TransferError(5, "read", str(tmp_path))
        return real(self, *given)  # type: ignore[arg-type]

    trained(model, loss, offload)
    monkeypatch.setattr(ToolFile, "fetch", fetch)
    model.zero_grad()
    with offload:
        value = loss(model)
    restore = offload.restore

    def short(handle: object) -> torch.Tensor:
        tensor = restore(handle)  # type: ignore[arg-type]
        with offload._lock:
            offload._tiers.unload_all()
        return tensor

    monkeypatch.setattr(offload, "restore", short)
    value.backward()
    same([one.grad for one in model.parameters()], plain)
    assert not failures
    offload.close()


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_transfer_interrupted_anywhere_ends_and_frees_its_space(tmp_path: Path, kind: str) -> None:
    """Whatever call a signal's handler interrupts: nothing is pending for ever, and no bytes stay in use."""
    memory = torch.ones(2000)
    places = set()
    for nth in itertools.count(1):
        with fastio.offload.ToolStore(tmp_path, policy="posix") as store:
            if kind == "read":
                store.write(1, memory.data_ptr(), 8000)
                store.wait(1)
            move = getattr(store, kind)
            where = interrupted_after(nth, partial(move, 1, memory.data_ptr(), 8000), "offload/stores/")
            end = time.monotonic() + 60
            while not store.finished([1]):
                assert time.monotonic() < end, where
            with contextlib.suppress(IndexError):  # interrupted before it was there
                store.free(1)
            assert store.stats.bytes_used == 0, where
            store.write(2, memory.data_ptr(), 8000)
            store.wait(2)
        if not where:
            break
        places.add(where.partition(":")[0])
    assert places >= {kind, "_begin", "start", "_start_thread"}, places
