"""torchft: replicas recover through files, by the library's own tests of a transport and in a training."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import TestCase

import pytest
import torch

from required_packages import require

require("torchft")
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]

SOON = timedelta(milliseconds=50)


def transport(folder: Path) -> Any:
    from fastio.integrations.torchft import FileTransport

    return FileTransport(folder)


def test_the_librarys_own_test_of_a_transport(tmp_path: Path) -> None:
    from torchft.checkpointing.transport_test import run_multi_recovery_test

    run_multi_recovery_test(
        TestCase(), lambda rank, world: transport(tmp_path / f"replica-{rank}"), torch.device("cpu")
    )
    assert not [name for _, _, names in os.walk(tmp_path) for name in names]


def test_nothing_of_an_earlier_process_or_step_is_received(tmp_path: Path) -> None:
    sender = transport(tmp_path / "a")
    sender.send_checkpoint([1], 5, {"w": torch.arange(5.0)}, SOON)
    (tmp_path / "a" / "mine.pt").write_bytes(b"")
    left = tmp_path / "a" / ".torchft-step-4.pt.fastio-0.tmp"  # of a process that was killed while it sent
    left.write_bytes(b"part")
    assert transport(tmp_path / "b").recv_checkpoint(0, sender.metadata(), 5, SOON)["w"].tolist() == [0, 1, 2, 3, 4]
    for again in (sender.disallow_checkpoint, lambda: transport(tmp_path / "a")):
        sender.send_checkpoint([1], 6, {"w": torch.zeros(5)}, SOON)
        again()
        with pytest.raises(TimeoutError, match="step 6 of replica 0"):
            sender.recv_checkpoint(0, sender.metadata(), 6, SOON)
    assert os.listdir(tmp_path / "a") == ["mine.pt"]


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    from fastio import CorruptFileError

    sender = transport(tmp_path)
    sender.send_checkpoint([1], 1, {"w": torch.zeros(100_000)}, SOON)
    path = tmp_path / "torchft-step-1.pt"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError):
        sender.recv_checkpoint(0, str(tmp_path), 1, SOON)


def test_a_lost_replica_recovers_in_a_training(tmp_path: Path) -> None:
    from torchft._torchft import LighthouseServer

    lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=2)
    try:
        with ThreadPoolExecutor(2) as replicas:
            stays = replicas.submit(_train, tmp_path / "0", lighthouse.address(), steps=4)
            assert replicas.submit(_train, tmp_path / "1", lighthouse.address(), steps=2, is_lost=True).result() is None
            returns = replicas.submit(_train, tmp_path / "1", lighthouse.address(), steps=4)
            found = [replica.result() for replica in (stays, returns)]
    finally:
        lighthouse.shutdown()
    assert found[0][1] == 0
    assert found[1][1] >= 2  # the step that it received
    for name, tensor in found[0][0].items():
        assert torch.equal(tensor, found[1][0][name])


def _train(folder: Path, address: str, steps: int, is_lost: bool = False) -> Any:
    """Train as one replica; returns its weights, and the step that it received last, unless it is lost."""
    from torchft.manager import Manager
    from torchft.optim import OptimizerWrapper
    from torchft.process_group import ProcessGroupGloo

    received = [0]
    torch.manual_seed(int(folder.name))
    model = torch.nn.Linear(300, 10)
    adam = torch.optim.Adam(model.parameters())

    def load(state: Any) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        received[0] = state["step"]

    store = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    manager = Manager(
        ProcessGroupGloo(),
        load,
        lambda: {"model": model.state_dict(), "adam": adam.state_dict(), "step": manager.current_step()},
        min_replica_size=2,
        rank=0,
        world_size=1,
        store_addr="localhost",
        store_port=store.port,
        lighthouse_addr=address,
        replica_id=folder.name,
        checkpoint_transport=transport(folder),
    )
    try:
        optimizer = OptimizerWrapper(manager, adam)
        while manager.current_step() < steps:
            optimizer.zero_grad()
            model(torch.ones(2, 300)).square().sum().backward()
            for parameter in model.parameters():
                manager.allreduce(parameter.grad).wait()
            optimizer.step()
        return None if is_lost else (model.state_dict(), received[0])
    finally:
        manager.shutdown(wait=False)
