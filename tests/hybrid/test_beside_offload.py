"""Hybrid beside an Offload of the same model: parameters are Hybrid's, all other saved tensors Offload's."""

from __future__ import annotations

import contextlib
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fastio
from fastio.hybrid import Hybrid, manager
from fastio.offload.autograd.hooks import REPORTS_TOP_HOOKS, is_exchanged
from hybrid_training import LateDeviceMemory, assert_same_bits, cloned, one_thread
from slow_store import SlowStore

WIDTH, DEPTH, ROWS = 32, 4, 64  # 8 KiB of activations: more than Offload's least

pytestmark = pytest.mark.skipif(not REPORTS_TOP_HOOKS, reason="this torch does not report saved-tensor hooks")


class Counting(LateDeviceMemory):
    """Counts the copies that compute waited for."""

    used = 0

    def copy_to_device(self, device: torch.Tensor, host: torch.Tensor) -> Any:
        pending: Any = super().copy_to_device(device, host)
        wait = pending.wait

        def counted() -> None:
            self.used += pending._pair is not None
            wait()

        pending.wait = counted
        return pending


class Run:
    """Three steps with all layers in ``mode``, under an Offload or not."""

    def __init__(
        self, mode: str | None, folder: Path | None, monkeypatch: pytest.MonkeyPatch, policy: str = "all"
    ) -> None:
        self.memory = Counting()
        monkeypatch.setattr(manager, "device_memory_for", lambda device: self.memory)
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        hybrid = Hybrid(model, optimizer, planner=lambda costs: [mode] * len(costs)) if mode is not None else None
        offload = None if folder is None else fastio.Offload(model, store=folder, policy=policy)
        self.used = []
        self.taken = []  # saved tensors that are Offload's
        for _ in range(3):
            before = self.memory.used
            optimizer.zero_grad()
            inputs = torch.randn(ROWS, WIDTH)
            if offload is None:
                loss = model(inputs).square().mean()
            else:
                with offload:
                    loss = model(inputs).square().mean()
                self.taken.append(offload.saved_tensors_alive)
            loss.backward()
            self.used.append(self.memory.used - before)
            optimizer.step()
        self.state = cloned(model.state_dict())
        if offload is not None:
            offload.close()
        if hybrid is not None:
            hybrid.close()


@pytest.mark.parametrize("policy", ["all", "optimal"])
@pytest.mark.parametrize("mode", ["DFGB", "GFGB"])
def test_copies_are_read_in_backward_and_activations_are_offloaded(
    mode: str, policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("error")
        plain = Run(None, None, monkeypatch)
        alone = Run(mode, None, monkeypatch)
        under = Run(mode, tmp_path, monkeypatch, policy)
        offload = Run(None, tmp_path, monkeypatch, policy)
    assert_same_bits(alone.state, plain.state)
    assert_same_bits(under.state, plain.state)
    assert under.used == alone.used
    assert alone.used[1] >= DEPTH - 1, "the first layer's backward reads no weight"
    assert under.taken == offload.taken
    assert min(under.taken) >= DEPTH


class DearStore(SlowStore):
    """Takes longer for each transfer than any operator here, so that what can be recomputed is."""

    def write(self, index: int, address: int, nbytes: int) -> None:
        time.sleep(0.01)
        super().write(index, address, nbytes)


class Block(nn.Module):
    """Reads its parameters while they are on the device; its sum of layers is saved then."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(128), nn.Linear(128, 128)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.norm(torch.tanh(self.layer(x))))


@pytest.mark.parametrize("mode", ["GFGB", "DFGB", "DHA"])
def test_what_is_made_from_parameters_that_are_exchanged_is_not_recomputed(mode: str) -> None:
    def run(together: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(*[Block() for _ in range(4)])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        around: Any = contextlib.nullcontext()
        hybrid: Any = None
        if together:
            hybrid = Hybrid(model, optimizer, device="cpu", planner=lambda costs: [mode] * len(costs))
            around = fastio.Offload(model, store=DearStore(), policy="optimal", codec="none", budget="256KiB")
        losses: list[torch.Tensor] = []
        for _ in range(6):
            optimizer.zero_grad()
            with around:
                losses.append(model(torch.randn(64, 128)).square().mean())
            losses[-1].backward()
            optimizer.step()
        if together:
            assert around.counts.recomputed > 0, "GELU's outputs"
            around.close()
            hybrid.close()
            assert not any(is_exchanged(p.untyped_storage()) for p in model.parameters())
        return [loss.detach() for loss in losses] + [p.detach().clone() for p in model.parameters()]

    with one_thread():
        for found, plain in zip(run(True), run(False), strict=True):
            assert torch.equal(found, plain)
