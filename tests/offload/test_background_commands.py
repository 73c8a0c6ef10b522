"""Transfers in the background: an interrupt loses none, and an error of a read is kept until its tensor is needed."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch

import fastio
from fastio.errors import TransferError
from fastio.offload.stores.background_commands import BackgroundCommands, Command
from fastio.offload.stores.tool_file import ToolFile
from offloading import mlp, same, trained


def test_an_interrupted_wait_leaves_a_command_that_can_be_waited_for() -> None:
    ran: list[int] = []
    commands = BackgroundCommands(0)  # as where the system refuses threads
    command = Command(lambda: ran.append(1), reads=True)
    commands.add(command)
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
    commands.add(command)
    commands.add(queued)
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
