"""When an accelerator computes and copies under Offload, by its own trace; and what the plan makes of it."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from fastio.offload.manager import Offload
from fastio.offload.planning.overlap import ActivationProfile
from slow_store import SlowStore

pytestmark = pytest.mark.simulated

LAYERS = 4


def kernels(begin: int) -> list[simulated.Work]:
    """The kernels of forward passes among the works from number ``begin`` on."""
    return [work for work in simulated.trace()[begin:] if work.name in ("aten::addmm", "aten::tanh")]


class Steps:
    """A training whose kernels take much longer than their launches, in the devices' modelled time."""

    def __init__(self, policy: Any, codec: Any = "none", host_budget: Any = 0) -> None:
        simulated.configure_execution("never", check_order=True)
        simulated.configure_time(True)
        layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(512, 512), nn.Tanh())]
        self.model = nn.Sequential(*layers).to("simulated")
        self.x = torch.randn(64, 512, device="simulated")
        self.offload = Offload(store=SlowStore(), policy=policy, codec=codec, host_budget=host_budget)

    def run(self, compute_bandwidth: float) -> list[float]:
        """Return the seconds from the beginning of the forward pass's compute to the end of each of its kernels."""
        torch.simulated.synchronize()
        simulated.configure(compute_bandwidth=compute_bandwidth)
        begin = len(simulated.trace())
        with self.offload:
            loss = self.model(self.x).square().mean()
        torch.simulated.synchronize()
        seconds = list(itertools.accumulate(work.ended - work.started for work in kernels(begin)))
        loss.backward()
        torch.simulated.synchronize()
        return seconds


def test_a_pass_may_compute_on_the_host_and_on_two_devices() -> None:
    places = ("cpu", "simulated:0", "simulated:1")
    layers = [nn.Linear(128, 128).to(place) for place in places]
    x = torch.randn(32, 128, requires_grad=True)

    def gradient(around: Any) -> torch.Tensor:
        y = x
        with around:
            for layer, place in zip(layers, places, strict=True):
                y = layer(y.to(place)).tanh()
            loss = y.square().mean()
        (found,) = torch.autograd.grad(loss, x)
        return found

    plain = gradient(contextlib.nullcontext())
    offload = Offload(store=SlowStore(), budget="64KiB")
    for _ in range(5):
        assert torch.equal(gradient(offload), plain)
    assert offload.report().planned is not None
    offload.close()


@pytest.mark.filterwarnings("ignore:policy .vdnn-all. moves")
@pytest.mark.parametrize("policy", ["all", "flashneuron", "vdnn-all"])
def test_the_plan_uses_the_compute_of_the_third_pass(policy: str) -> None:
    steps = Steps(policy)
    steps.run(compute_bandwidth=1e8)
    steps.run(compute_bandwidth=2e8)
    assert steps.offload.report().planned is None
    *_, compute_s = steps.run(compute_bandwidth=3e8)
    steps.run(compute_bandwidth=3e9)
    report = steps.offload.report()
    assert compute_s < report.forward_s < compute_s * 1.3
    assert (report.planned is None) == (policy == "all")
    steps.offload.close()


def test_the_profile_tells_when_each_activation_is_ready() -> None:
    seen: list[list[ActivationProfile]] = []

    def everything(activations: list[ActivationProfile], need: int, forward_s: float) -> range:
        seen.append(activations)
        return range(len(activations))

    steps = Steps(everything)
    for _ in range(3):
        kernels_s = steps.run(compute_bandwidth=3e8)
    assert not seen
    steps.run(compute_bandwidth=3e9)
    ready_s = [activation.ready_s for activation in seen[-1]]
    tanh_s = kernels_s[1::2]
    assert ready_s[0] == 0
    assert len(ready_s) == 1 + LAYERS
    for ready, made in zip(ready_s[1:], tanh_s, strict=True):
        assert made - 1e-4 < ready < made * 1.05 + 1e-4
    steps.offload.close()


@pytest.mark.parametrize(("codec", "ratio"), [("none", 1), ("fp16", 2)])
def test_a_move_to_host_memory_takes_as_long_as_the_device_says(codec: str, ratio: int) -> None:
    """The machine's own speed, at which the copies are really done, has no effect."""
    seen: list[list[ActivationProfile]] = []

    def everything(activations: list[ActivationProfile], need: int, forward_s: float) -> range:
        seen.append(activations)
        return range(len(activations))

    steps = Steps(everything, codec, "64MiB")
    bandwidth = 1e6
    simulated.configure(to_host_bandwidth=bandwidth)
    for _ in range(4):
        steps.run(compute_bandwidth=1e9)
    for activation in seen[-1]:
        assert activation.ratio == ratio
        copied_s = activation.nbytes / bandwidth  # what is half as large counts twice
        assert copied_s <= activation.transfer_s < copied_s * 1.1
    steps.offload.close()


def test_a_late_write_does_not_wait_for_later_kernels() -> None:
    simulated.configure_execution("never")
    simulated.configure_time(True, call_seconds=1e-3)
    simulated.configure(to_host_bandwidth=50e6)  # 20 ms for each tensor
    x = torch.randn(512, 512, device="simulated", requires_grad=True)  # 1 MiB
    matrix = torch.ones(512, 512, device="simulated")
    offload = Offload(store=SlowStore(), policy="all", budget="4MiB", host_budget="64MiB", codec="none")
    for _ in range(3):
        begin = len(simulated.trace())
        with offload:
            y = x
            for _ in range(4):
                y = y.tanh()  # three move out: one is in transit, two wait for it
            torch.simulated.current_stream().synchronize()
            simulated.configure(compute_bandwidth=30e6)
            matrix @ matrix  # 100 ms
            for _ in range(50):  # 50 ms
                torch.simulated.current_stream().query()
            y = y.tanh()
        torch.simulated.synchronize()
        simulated.configure(compute_bandwidth=0)
        y.sum().backward()
    works = simulated.trace()[begin:]
    third = [work for work in works if work.engine == "to_host"][2]
    (product,) = (work for work in works if work.name == "aten::mm")
    assert product.issued < third.started < product.ended
    offload.close()
