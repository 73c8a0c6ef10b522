"""Hybrid with code that writes to weights, states and memory: layers, scalers, hooks, shared memory."""

from __future__ import annotations

import copy
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from disks import tmpfs
from fastio.errors import TransferError
from fastio.hybrid import Hybrid
from fastio.hybrid.errors import HybridError, StateLostError
from fastio.hybrid.memory.device_memory import device_memory_for
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.ranks import OneRank
from hybrid_training import adamw, assert_same_bits, cloned, one_thread, rotated

PLACES = pytest.mark.parametrize("stored", [False, True], ids=["in memory", "on a store"])


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(7, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU(), nn.Linear(9, 5))


def both(
    make: Callable[[], nn.Module], optimizer_of: Callable[[nn.Module], Any], loop: Callable[[Any, Any], Any], store: Any
) -> None:
    """Run the loop with a plain optimizer and with Hybrid; the bits must be the same."""
    outcomes = []
    for hybrid in (False, True):
        torch.manual_seed(0)
        network = make()
        optimizer = optimizer_of(network)
        held = hybrid and Hybrid(
            network, optimizer, planner=rotated(0), gradient_reserve=0.5, device="cpu", optimizer_store=store
        )
        torch.manual_seed(1)
        said = loop(network, optimizer)
        outcomes.append((said, cloned(network.state_dict()), cloned(optimizer.state_dict())))
        del held
    assert_same_bits(*outcomes)


def trained(network: nn.Module, optimizer: torch.optim.Optimizer) -> list[float]:
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = network(torch.randn(4, 7)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@PLACES
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_scaler_with_a_fused_step_gives_the_plain_bits(kind: Any, stored: bool, tmp_path: Path) -> None:
    def loop(network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        losses = []
        for number in range(6):
            optimizer.zero_grad()
            loss = network(torch.randn(4, 7)).square().mean()
            scaler.scale(loss * float("inf") if number == 3 else loss).backward()
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
        return losses, scaler.get_scale()

    both(mlp, lambda network: kind(network.parameters(), lr=3e-3, fused=True), loop, tmp_path if stored else None)


class Constrained(nn.Module):
    """A module that writes to its weights in every way that a forward pass may."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(31, 7, max_norm=1.0)
        self.first, self.second = nn.Linear(7, 9), nn.Linear(9, 5)
        self.second.register_forward_pre_hook(lambda module, _: self._clamp(module.bias))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self._clamp(self.first.weight)
        hidden = self.first(inputs + self.table(torch.arange(4) % 3))
        result: torch.Tensor = self.second(hidden)
        return result

    @staticmethod
    @torch.no_grad()
    def _clamp(weight: torch.Tensor) -> None:
        weight.clamp_(-0.05, 0.05)


@PLACES
def test_weights_written_in_forward_are_kept(stored: bool, tmp_path: Path) -> None:
    both(Constrained, adamw, trained, tmp_path if stored else None)


@PLACES
def test_earlier_hooks_see_the_result_of_a_step(stored: bool, tmp_path: Path) -> None:
    seen: list[int] = []

    def count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        seen.append(sum(len(group["params"]) for group in optimizer.param_groups))

    def with_hook(network: nn.Module) -> torch.optim.Optimizer:
        optimizer = adamw(network)
        optimizer.register_step_post_hook(count)
        return optimizer

    both(mlp, with_hook, trained, tmp_path if stored else None)
    assert seen == [6] * 12


def test_step_interrupted_by_a_hook_leaves_the_groups_whole() -> None:
    def fail(*_: Any) -> None:
        raise ValueError("no")

    network = mlp()
    optimizer = adamw(network)
    hybrid = Hybrid(network, optimizer, planner=rotated(0), device="cpu")
    network(torch.randn(4, 7)).sum().backward()
    handle = optimizer.register_step_pre_hook(fail)
    with pytest.raises(ValueError, match="no"):
        optimizer.step()
    handle.remove()
    hybrid.close()
    assert len(optimizer.param_groups[0]["params"]) == 6
    with pytest.raises(HybridError, match="closed"):
        hybrid.step()
    optimizer.step()  # as the message advises


def test_states_of_frozen_parameters_are_kept(tmp_path: Path) -> None:
    network = mlp()
    optimizer = adamw(network)
    trained(network, optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    for parameter in network[0].parameters():
        parameter.requires_grad_(False)
    with Hybrid(network, optimizer, planner=rotated(0), device="cpu", optimizer_store=tmp_path):
        assert_same_bits(before, optimizer.state_dict())
    assert_same_bits(before, optimizer.state_dict())


def test_state_lost_with_its_hybrid_raises_state_lost_error(tmp_path: Path) -> None:
    network = mlp()
    optimizer = adamw(network)
    hybrid = Hybrid(network, optimizer, planner=rotated(0), device="cpu", optimizer_store=tmp_path)
    trained(network, optimizer)
    del hybrid
    gc.collect()
    with pytest.raises(StateLostError, match="is lost"):
        optimizer.state_dict()


@PLACES
def test_parameter_memory_that_moves_raises_an_error(stored: bool, tmp_path: Path) -> None:
    network = mlp()
    optimizer = adamw(network)
    store = tmp_path if stored else None
    hybrid = Hybrid(network, optimizer, planner=rotated(0), device="cpu", optimizer_store=store)
    trained(network, optimizer)
    network.share_memory()
    with pytest.raises(HybridError, match="share_memory"):
        trained(network, optimizer)
    assert hybrid.plan


def replaced(network: nn.Module) -> None:
    for layer in (network[0], network[2], network[4]):  # type: ignore[index]
        layer.weight.data = layer.weight.data.clamp(-0.05, 0.05)


def replaced_in_forward(network: nn.Module) -> None:
    network[2].register_forward_pre_hook(lambda module, _: replaced(network))  # type: ignore[index]


@pytest.mark.parametrize("modes", range(3))
@pytest.mark.parametrize("replace", [replaced, replaced_in_forward, lambda network: network.half().float()])
def test_parameter_memory_that_the_program_replaces_is_never_undone(modes: int, replace: Callable[[Any], Any]) -> None:
    """Whatever the layers' modes: forward computes with the program's values, and the next step raises."""
    torch.manual_seed(0)
    network = mlp()
    optimizer = adamw(network)
    hybrid = Hybrid(network, optimizer, planner=rotated(modes), device="cpu")
    trained(network, optimizer)
    plain = copy.deepcopy(network)
    inputs = torch.randn(4, 7)
    for one in (plain, network):
        replace(one)
    for _ in range(2):
        assert network(inputs).equal(plain(inputs))
    network(inputs).sum().backward()
    with pytest.raises(HybridError, match=r"the memory of \d.weight was replaced"):
        hybrid.step()
    assert_same_bits(cloned(plain.state_dict()), cloned(network.state_dict()))


def test_full_disk_raises_an_error_instead_of_killing_the_process(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 1) as folder, pytest.raises(OSError, match="space"):
        FlatBuffer(4 << 20, device_memory_for("cpu"), OneRank(), str(folder))


def test_full_optimizer_store_raises_an_error_that_names_it(tmp_path: Path) -> None:
    network = nn.Linear(1024, 1024)
    with tmpfs(tmp_path / "small", 1) as folder:
        with pytest.raises(TransferError) as caught:
            Hybrid(network, adamw(network), device="cpu", optimizer_store=folder)
        assert caught.value.filename == str(folder)
        assert re.search("gradients.*optimizer_store= names its folder.*No space left.*; make room", str(caught.value))
        del caught  # frees the error, which holds the Hybrid and the folder
        gc.collect()


@PLACES
def test_later_hooks_see_the_gradients_before_the_update(stored: bool, tmp_path: Path) -> None:
    """Also through ``optimizer.step()``, which runs hooks in their order of registration."""

    def loop(network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        def halve(optimizer: Any, arguments: Any, settings: Any) -> None:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad.mul_(0.5)

        handle = optimizer.register_step_pre_hook(halve)
        losses = trained(network, optimizer)
        handle.remove()
        return losses + trained(network, optimizer)

    both(mlp, adamw, loop, tmp_path if stored else None)


def test_close_leaves_the_optimizer_as_it_was() -> None:
    network = mlp()
    optimizer = adamw(network)
    before = set(vars(optimizer))
    Hybrid(network, optimizer, device="cpu").close()
    assert set(vars(optimizer)) == before
    seen = []
    optimizer.register_step_pre_hook(lambda *_: seen.append(1))
    trained(network, optimizer)
    assert len(seen) == 6


@PLACES
def test_gradients_whose_memory_moves_are_used_in_the_update(stored: bool, tmp_path: Path) -> None:
    """As moved by Hogwild's ``share_memory_()``, and by a torch.multiprocessing queue."""

    def loop(network: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
        losses = []
        for number in range(6):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = network(torch.randn(4, 7)).square().mean()
            loss.backward()
            if number in (2, 3):
                for parameter in network.parameters():
                    assert parameter.grad is not None
                    parameter.grad.share_memory_()
            optimizer.step()
            losses.append(loss.item())
        return losses

    both(mlp, adamw, loop, tmp_path if stored else None)


def test_optimizer_whose_hybrid_was_collected_gets_another() -> None:
    """It can no longer be closed; its state is in the optimizer."""
    plain, network = mlp(), mlp()
    network.load_state_dict(plain.state_dict())
    optimizers = [adamw(plain), adamw(network)]
    first = Hybrid(network, optimizers[1], planner=rotated(0), device="cpu")
    for loop in range(2):
        if loop:
            del first
            gc.collect()
            second = Hybrid(network, optimizers[1], planner=rotated(1), device="cpu")
        said = []
        for one, optimizer in zip((plain, network), optimizers, strict=True):
            torch.manual_seed(loop)
            said.append(trained(one, optimizer))
        assert said[0] == said[1]
    second.close()
    assert_same_bits(cloned(plain.state_dict()), cloned(network.state_dict()))
    assert_same_bits(cloned(optimizers[0].state_dict()), cloned(optimizers[1].state_dict()))


def test_optimizer_whose_state_was_lost_is_refused(tmp_path: Path) -> None:
    network = mlp()
    optimizer = adamw(network)
    first = Hybrid(network, optimizer, device="cpu", optimizer_store=tmp_path)
    trained(network, optimizer)
    del first
    gc.collect()
    with pytest.raises(StateLostError, match="the state on its store is lost"):
        Hybrid(network, optimizer, device="cpu")
