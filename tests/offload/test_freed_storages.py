"""Storages that a program frees before their move, reads that are given up, and stores that know no such index."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import fastio
import simulated
from fastio.offload.autograd.saved_tensor import State


@pytest.mark.parametrize("host_budget", [0, "64MiB"])
@pytest.mark.parametrize("left", [0, 64])
@pytest.mark.parametrize("device", ["cpu", pytest.param("simulated", marks=pytest.mark.simulated)])
def test_a_storage_that_was_freed_before_its_move_stays_the_programs(
    tmp_path: Path, host_budget: Any, left: int, device: str
) -> None:
    a = torch.randn(128, 128).to(device).requires_grad_()
    (expected,) = torch.autograd.grad((a * 1).sin().cos().sum(), a)
    offload = fastio.Offload(store=tmp_path, policy="all", codec="none", host_budget=host_budget)
    for _ in range(5):
        with offload:
            x = a * 1
            kept = x.detach().clone()
            y = x.sin()
            x.untyped_storage().resize_(left)  # as sharded training frees what it gathered
            z = y.cos()
        x.untyped_storage().resize_(kept.nbytes)
        x.data.copy_(kept)
        (found,) = torch.autograd.grad(z.sum(), a)
        assert torch.equal(found, expected)
    assert offload.counts.moved >= 1  # the plan of later passes may keep it
    assert offload.counts.refused == 0
    del x, y, z
    assert offload.saved_tensors_alive == 0
    offload.close()


@pytest.mark.parametrize("host_budget", [0, "64MiB"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("simulated", marks=pytest.mark.simulated)])
def test_a_storage_that_the_program_frees_after_its_move_is_not_copied_again(
    tmp_path: Path, host_budget: Any, device: str
) -> None:
    """The allocator may give its memory away at once. A copy that is still under way then is told as a race."""
    if device == "simulated":
        simulated.configure_execution("always")
    a = torch.randn(128, 128).to(device).requires_grad_()
    (expected,) = torch.autograd.grad((a * 1).sin().cos().exp().sum(), a)
    offload = fastio.Offload(store=tmp_path, policy="all", codec="none", host_budget=host_budget)
    passes = 0
    while passes < 6 or (offload.counts.writes == 0 and passes < 200):  # a busy disk begins no write in time
        passes += 1
        with offload:
            x = a * 1
            kept = x.detach().clone()
            y = x.sin().cos().exp()  # x moves
            x.untyped_storage().resize_(0)
            others = [torch.full_like(kept, 7.0) for _ in range(4)]
            loss = y.sum()
        x.untyped_storage().resize_(kept.nbytes)  # often where it was
        x.data.copy_(kept)
        (found,) = torch.autograd.grad(loss, a)
        assert torch.equal(found, expected)
        del x, y, loss, others
    assert offload.counts.writes > 0
    assert offload.counts.refused == 0
    assert offload.saved_tensors_alive == 0
    offload.close()


@pytest.mark.parametrize("host_budget", [0, "64MiB"])
@pytest.mark.parametrize("device", ["cpu", pytest.param("simulated", marks=pytest.mark.simulated)])
def test_what_is_read_ahead_is_dropped_when_memory_is_short(tmp_path: Path, host_budget: Any, device: str) -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        for _ in range(12):
            x = x.tanh()
        return x.sum()

    w = torch.full((128, 128), 0.5).to(device).requires_grad_()
    expected = [torch.autograd.grad(branch(w * factor), w)[0] for factor in (1.0, 2.0)]
    offload = fastio.Offload(store=tmp_path, policy="all", codec="none", budget="640KiB", host_budget=host_budget)
    for turn in range(6):
        with offload:
            a, b = branch(w * 1.0), branch(w * 2.0)
        (first,) = torch.autograd.grad(a, w)  # reads ahead what b needs
        if turn >= 4:
            assert any(saved.state is State.INFLIGHT for saved in offload._tiers.loaded)
            with offload._lock:
                offload._tiers.unload_all()
            assert not [*offload._tiers.loaded]
        (second,) = torch.autograd.grad(b, w)
        assert torch.equal(first, expected[0])
        assert torch.equal(second, expected[1])
    offload.close()


class Full:
    """A store without room, whose ``free`` is that of a dictionary."""

    def __init__(self) -> None:
        self.blobs: dict[int, bytes] = {}

    def write(self, index: int, address: int, nbytes: int) -> None:
        raise OSError(errno.ENOSPC, "no room")

    def read(self, index: int, address: int, nbytes: int) -> None:
        raise KeyError(index)

    def update(self) -> int:
        return 0

    def is_done(self, index: int) -> bool:
        return True

    def wait(self, index: int) -> None:
        pass

    def free(self, index: int) -> None:
        del self.blobs[index]

    def close(self) -> None:
        pass


def test_a_store_may_not_know_what_it_is_to_free() -> None:
    a = torch.randn(64, 64, requires_grad=True)
    (expected,) = torch.autograd.grad(a.sin().cos().sum(), a)
    offload = fastio.Offload(store=Full(), policy="all", codec="none")
    for turn in range(2):
        if turn == 0:
            with pytest.warns(RuntimeWarning, match="stay in memory"), offload:
                y = a.sin().cos().sum()
        else:
            with offload:
                y = a.sin().cos().sum()
        assert torch.equal(torch.autograd.grad(y, a)[0], expected)
    offload.close()
