"""Threads and processes that share a Hybrid's model take turns, or get an error."""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio.hybrid import Hybrid
from fastio.hybrid.errors import HybridError
from hybrid_training import adamw, assert_same_bits, cloned, mlp, one_thread, rotated

SAID = "another thread is in a forward pass of this model, or in its update"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


class Gate(nn.Module):
    """Passes its input on; threads other than its maker wait inside, or end there as by Ctrl-C."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.go, self.interrupted = threading.Event(), threading.Event(), False
        self.made_by = threading.get_ident()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if threading.get_ident() != self.made_by:
            self.inside.set()
            if self.interrupted:
                raise KeyboardInterrupt
            assert self.go.wait(300)
        return x


def gated() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 9), Gate(), nn.ReLU(), nn.Linear(9, 5))


def backward(network: nn.Module, seed: int) -> None:
    network.zero_grad()
    network(torch.randn(4, 7, generator=torch.Generator().manual_seed(seed))).square().mean().backward()


@pytest.fixture
def inference() -> Iterator[Callable[[nn.Module], threading.Thread]]:
    """Start a thread that waits inside a forward pass without gradients; it is released at the end."""
    begun: list[tuple[Gate, threading.Thread]] = []

    def begin(network: Any) -> threading.Thread:
        def run() -> None:
            try:
                with torch.no_grad():
                    network(torch.ones(4, 7))
            except KeyboardInterrupt:
                pass

        gate = next(module for module in network.modules() if isinstance(module, Gate))
        thread = threading.Thread(target=run)
        begun.append((gate, thread))
        thread.start()
        assert gate.inside.wait(300)
        return thread

    yield begin
    for gate, thread in begun:
        gate.go.set()
        thread.join()


@pytest.mark.parametrize("modes", [rotated(0), rotated(1), "zero-offload"])
def test_step_during_another_threads_pass_raises_an_error(modes: Any, inference: Any) -> None:
    networks = [gated(), gated()]
    optimizers = [adamw(network) for network in networks]
    plain, network = networks
    with Hybrid(network, optimizers[1], planner=modes, device="cpu") as hybrid:
        for seed in range(2):
            backward(network, seed)
            hybrid.step()
        backward(network, 2)
        thread = inference(network)
        for refused in (hybrid.step, optimizers[1].step, hybrid.close, lambda: network(torch.ones(4, 7))):
            with pytest.raises(HybridError, match=SAID):
                refused()
        network[1].go.set()
        thread.join()
        hybrid.step()
        backward(network, 3)
        hybrid.step()
    for seed in range(4):
        backward(plain, seed)
        optimizers[0].step()
    assert_same_bits(cloned(plain.state_dict()), cloned(network.state_dict()))


def test_interrupted_pass_of_another_thread_does_not_block(inference: Any) -> None:
    network = gated()
    network[1].interrupted = True
    with Hybrid(network, adamw(network), planner=rotated(0), device="cpu") as hybrid:
        for seed in range(4):
            backward(network, seed)
            if seed == 2:
                inference(network).join()
            hybrid.step()
            if seed == 3:
                inference(network).join()
        assert torch.isfinite(network(torch.ones(4, 7))).all()


def test_threads_that_share_a_lock_train_like_one_thread() -> None:
    outcomes = []
    for threads in (0, 3):
        torch.manual_seed(0)
        network = mlp()
        lock, done, wrong = threading.Lock(), threading.Event(), []

        def watch(network: nn.Module = network, lock: Any = lock, done: Any = done, wrong: Any = wrong) -> None:
            while not done.is_set():
                try:
                    with lock, torch.no_grad():
                        network(torch.ones(2, 7))
                except HybridError as error:
                    wrong.append(error)

        watchers = [threading.Thread(target=watch) for _ in range(threads)]
        with Hybrid(network, adamw(network), planner=rotated(1), device="cpu") as hybrid:
            for thread in watchers:
                thread.start()
            for seed in range(6):
                with lock:
                    backward(network, seed)
                    hybrid.step()
            done.set()
            for thread in watchers:
                thread.join()
        assert not wrong
        outcomes.append(cloned(network.state_dict()))
    assert_same_bits(*outcomes)


def test_forked_process_must_not_write_to_its_parents_files(tmp_path: Path) -> None:
    """Gradients in mapped files and the store belong to the parent: calls that may write there raise an error."""
    network = mlp()
    optimizer = adamw(network)
    with Hybrid(network, optimizer, gradient_reserve=0.0, device="cpu", optimizer_store=tmp_path) as hybrid:
        for seed in range(2):
            backward(network, seed)
            hybrid.step()
        backward(network, 2)
        before = [p.grad.clone() for p in network.parameters() if p.grad is not None]
        child = os.fork()
        if not child:
            status = 1
            try:
                for refused in (lambda: network(torch.ones(4, 7)), hybrid.step):
                    with pytest.raises(HybridError, match=f"made by process {os.getppid()}, which has its gradients"):
                        refused()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        assert_same_bits(before, [p.grad for p in network.parameters()])
        hybrid.step()
