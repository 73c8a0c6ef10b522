"""The tool store on device memory: any tool, by dictionaries of the device, in the background, in the right order."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import device_steps
import simulated
from device_steps import DEVICE
from fastio import devices, dicts
from fastio.dicts.wrdic import MODES
from fastio.offload.manager import Offload
from fastio.offload.stores.resolve_store import resolve_store
from fastio.offload.stores.tool_store import ToolStore

ROWS, WIDTH = 512, 256
SAVED = ROWS * WIDTH * 4  # bytes of one


@pytest.fixture
def model() -> nn.Module:
    return device_steps.layers_of(WIDTH)


def step(model: nn.Module, offload: Any, seed: int) -> list[torch.Tensor]:
    return device_steps.step(model, ROWS, WIDTH, offload, seed)


def plain_steps(model: nn.Module, count: int) -> list[list[torch.Tensor]]:
    return [step(model, torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t), i) for i in range(count)]


def host_bytes() -> int:
    return sum(work.nbytes for work in simulated.trace() if work.engine in {"to_host", "to_device"})


@pytest.mark.parametrize("late", ["random", "always"])
def test_gds_moves_all_payload_past_the_host(tmp_path: Path, model: nn.Module, kvikio: Any, late: Any) -> None:
    plain = plain_steps(model, 3)
    simulated.configure_execution(late)
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    with kvikio.defaults.set("gds_threshold", 0), ToolStore(folders, "gds") as store:
        offload = Offload(model, store=store, budget=2 * SAVED, policy="all", codec="none")
        for seed, expected in enumerate(plain):
            before = host_bytes()
            assert all(map(torch.equal, step(model, offload, seed), expected))
            assert host_bytes() - before == SAVED  # the batch
        report = offload.report()
        offload.close()
        assert report.routes[DEVICE].name == "tools"
        assert set(store.stats.routes) == {"gds"}
        assert store.stats.routes["gds"] >= report.counts.writes + report.counts.reads  # some were begun in vain
        assert f"transfers by route: gds {store.stats.routes['gds']}" in str(report)
        assert store.stats.bytes_used == 0


@pytest.mark.parametrize("policy", ["w", "r", "w+r", "pinned", "torch"])
def test_each_way_of_choosing_gives_the_plain_gradients(
    tmp_path: Path, model: nn.Module, kvikio: Any, policy: str
) -> None:
    plain = plain_steps(model, 6)
    simulated.configure_execution("random", late_seed=len(policy))
    with ToolStore(tmp_path, policy) as store:
        offload = Offload(model, store=store, budget=2 * SAVED, policy="all", codec="none")
        for seed, expected in enumerate(plain):
            assert all(map(torch.equal, step(model, offload, seed), expected))
        offload.close()
        used = set(store.stats.tools)
        assert used <= {"gds", "pinned", "torch"}
    if policy in MODES:
        device = devices.identity(torch.device(DEVICE))
        assert device.startswith("simulated")
        learned = dicts.default("w+r", str(tmp_path))
        saves = dicts.Context("save", "raw", device, durable=False)
        for context in (saves, dicts.Context("load", "raw", device, resident=False)):
            explained = learned.explain(context, SAVED, ("gds", "pinned", "torch"))
            assert any(entry.samples for entry in explained.entries)


def test_fastensor_with_folders_opens_one_tool_store(tmp_path: Path, model: nn.Module) -> None:
    plain = plain_steps(model, 2)
    folders = [str(tmp_path), str(tmp_path)]
    store, ours = resolve_store(folders, "fastensor")
    assert ours
    assert isinstance(store, ToolStore)
    store.close()
    offload = Offload(model, store=folders, policy="fastensor", codec="none")
    for seed, expected in enumerate(plain):
        assert all(map(torch.equal, step(model, offload, seed), expected))
    offload.close()
    assert os.listdir(tmp_path) == []
