"""vDNN in the run: what its policies issue and wait for, layer by layer, by the simulated device's own trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import simulated
from fastio.offload.manager import Offload
from offloading import noise

pytestmark = pytest.mark.simulated

VALUES = 1 << 16
KERNEL_S = 0.01  # of an operator that reads and writes so many values
WARM_UP = 4  # steps: one is not timed, two are profiled, one is the first that follows the plan


@pytest.fixture(autouse=True)
def modelled_time() -> Iterator[None]:
    simulated.configure_execution("never", check_order=True)
    simulated.configure_time(True, call_seconds=1e-6)
    simulated.configure(compute_bandwidth=8 * VALUES / KERNEL_S, latency=0.0)
    yield
    simulated.configure_time(False)


class Step:
    """What the device did in the forward and in the backward pass of a planned step.

    A copy of VALUES takes ``copy_s``. The gradient is that without offload.
    """

    def __init__(self, loss: Callable[[Tensor], Tensor], folder: Path, copy_s: float, policy: Any = "vdnn-all") -> None:
        simulated.configure(copy_bandwidth=4 * VALUES / copy_s)
        x = noise(VALUES).to("simulated").requires_grad_()
        (plain,) = torch.autograd.grad(loss(x), x)
        offload = Offload(store=folder, policy=policy, codec="none", host_budget=64 * VALUES)
        for _ in range(WARM_UP + 1):
            torch.simulated.synchronize()
            before = len(simulated.trace())
            with offload:
                total = loss(x)
            torch.simulated.synchronize()
            between = len(simulated.trace())
            (found,) = torch.autograd.grad(total, x)
            torch.simulated.synchronize()
            self.forward, self.backward = simulated.trace()[before:between], simulated.trace()[between:]
            assert torch.equal(found.cpu(), plain.cpu())
        assert offload.saved_tensors_alive == 0
        offload.close()

    def kernels(self, name: str, part: str = "forward") -> list[simulated.Work]:
        """The kernels of an operator, in order."""
        return sorted((work for work in getattr(self, part) if work.name == f"aten::{name}"), key=began)

    @property
    def out(self) -> list[simulated.Work]:
        return sorted((work for work in self.forward if work.engine == "to_host"), key=began)

    @property
    def back(self) -> list[simulated.Work]:
        return sorted((work for work in self.backward if work.engine == "to_device"), key=began)


def began(work: simulated.Work) -> float:
    return work.started


def chain(x: Tensor) -> Tensor:
    for _ in range(5):
        x = x.sin()
    return x.sum()


@pytest.mark.parametrize("copy_s", [0.4 * KERNEL_S, 2 * KERNEL_S])
def test_input_leaves_beside_its_layer_which_waits_at_its_end(tmp_path: Path, copy_s: float) -> None:
    """Section III-B and figure 9: the next layer is stalled by a slow copy, and not by a fast one."""
    step = Step(chain, tmp_path, copy_s)
    layers, copies = step.kernels("sin"), step.out
    assert len(layers) == len(copies) == 5
    for n in range(1, 5):  # the first layer's input was made by no operator: it is copied behind the layer
        assert copies[n].started == pytest.approx(layers[n].started, abs=1e-4)
    for n in range(1, 4):
        assert layers[n + 1].started == pytest.approx(layers[n].started + max(KERNEL_S, copy_s), abs=1e-4)


def test_output_leaves_with_its_last_reader(tmp_path: Path) -> None:
    """Figure 3: layer 1's output is read by two layers, and leaves beside the second one."""

    def fork(x: Tensor) -> Tensor:
        y = x.sin()
        return (y.cos().exp() + y.tan()).sum()

    step = Step(fork, tmp_path, 2 * KERNEL_S)
    (last,) = step.kernels("tan")
    (first,) = step.kernels("cos")
    starts = [copy.started for copy in step.out]
    assert any(start == pytest.approx(last.started, abs=1e-4) for start in starts)
    assert sum(start == pytest.approx(first.started, abs=1e-4) for start in starts) == 1  # x, behind its reader


@pytest.mark.parametrize("copy_s", [0.4 * KERNEL_S, 4 * KERNEL_S])
def test_input_comes_back_beside_the_layer_before_and_is_waited_for(tmp_path: Path, copy_s: float) -> None:
    """Figure 9: one prefetch at a time, issued when a layer's backward begins, and waited for at its end."""
    step = Step(chain, tmp_path, copy_s)
    layers, copies = step.kernels("cos", "backward"), step.back
    assert len(layers) == 5
    assert len(copies) == 4  # the first layer's input is alive
    assert layers[0].started >= copies[0].ended  # nothing came before it: read on demand
    for n in range(3):
        copy = copies[n + 1]
        assert copy.started == pytest.approx(layers[n].started, abs=1e-4)
        assert layers[n + 1].started >= copy.ended


def test_memory_holds_two_layers_and_what_is_prefetched(tmp_path: Path) -> None:
    simulated.configure(copy_bandwidth=4 * VALUES / KERNEL_S)
    x = noise(VALUES).to("simulated").requires_grad_()
    offload = Offload(store=tmp_path, policy="vdnn-all", codec="none", host_budget=64 * VALUES)

    def total() -> Tensor:
        y = x
        for _ in range(12):
            y = y.sin()
        return y.sum()

    for _ in range(WARM_UP + 1):
        torch.simulated.synchronize()
        before = torch.simulated.memory_allocated()
        torch.simulated.reset_peak_memory_stats()
        with offload:
            loss = total()
        most = torch.simulated.max_memory_allocated() - before
        torch.simulated.reset_peak_memory_stats()
        torch.autograd.grad(loss, x)
        most_backward = torch.simulated.max_memory_allocated() - before
    offload.close()
    assert most <= 3 * 4 * VALUES + 4096  # of twelve: X, Y, and what the layer before still had when Y was made
    assert most_backward <= 5 * 4 * VALUES + 4096  # X, dY, dX, a temporary result, and the next X


def test_prefetch_stays_within_the_next_convolution(tmp_path: Path) -> None:
    """Figure 10 in the run: when the first convolution's input is on its way, nothing before it is brought."""
    weight = noise(4, 4, 3, 3).mul(0.1).to("simulated")

    def network(x: Tensor) -> Tensor:
        y = x.reshape(1, 4, 128, 128)
        for _ in range(3):
            y = F.conv2d(y, weight, padding=1).sin().sin().sin()
        return y.sum()

    step = Step(network, tmp_path, 0.1 * KERNEL_S, "vdnn-conv")
    convolutions = [work for work in step.backward if "convolution" in work.name]
    activations = step.kernels("cos", "backward")
    assert len(activations) == 9
    copies = step.back
    assert len(copies) == 2  # the images are alive
    # The last convolution's input comes with the first activation; the others' with the convolution before.
    assert copies[0].started == pytest.approx(activations[0].started, abs=1e-4)
    assert copies[1].started == pytest.approx(convolutions[0].started, abs=1e-4)
