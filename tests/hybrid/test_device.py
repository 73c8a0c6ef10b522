"""Hybrid on a device: the order of its copies, and training on a GPU."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
import torch
from torch import nn

import simulated
from accelerators import DEVICE, torch_module
from fastio import devices
from fastio.hybrid import Hybrid, HybridError
from fastio.hybrid.memory import device_memory
from fastio.hybrid.optimizer.cpu_optimizer import CpuOptimizer
from hybrid_training import MODELS, PLANNERS, adamw, batch

gpu = pytest.mark.gpu

# The order of copies and kernels, on the simulated accelerator: works run when the host waits for them


@pytest.fixture
def memory() -> device_memory.AcceleratorMemory:
    simulated.configure_execution("always")
    return device_memory.AcceleratorMemory(devices.of("simulated"), torch.device("simulated:0"))


@pytest.mark.simulated
def test_compute_waits_for_copies_to_the_device_and_they_wait_for_earlier_kernels(
    memory: device_memory.AcceleratorMemory,
) -> None:
    host, device = torch.arange(4.0).pin_memory(), torch.zeros(4, device="simulated")
    device.fill_(7)  # an earlier kernel that still uses the memory
    arrival = memory.copy_to_device(device, host)
    arrival.wait()
    seen = device.clone()
    assert seen.tolist() == [0, 1, 2, 3]


@pytest.mark.simulated
def test_host_waits_for_copies_to_the_host_and_they_wait_for_their_kernel(
    memory: device_memory.AcceleratorMemory,
) -> None:
    host, device = torch.zeros(4).pin_memory(), torch.zeros(4, device="simulated")
    device.fill_(5)
    arrival = memory.copy_to_host(host, device)
    assert host.tolist() == [0, 0, 0, 0]
    arrival.wait()
    assert host.tolist() == [5, 5, 5, 5]


@pytest.mark.simulated
def test_synchronize_ends_all_reads_of_parameters(memory: device_memory.AcceleratorMemory) -> None:
    host, device = torch.ones(2).pin_memory(), torch.zeros(2, device="simulated")
    memory.copy_to_device(device, host)
    read_in_place = simulated.host_view(host) * 2
    memory.synchronize()
    host.fill_(9)
    torch.simulated.synchronize()
    assert device.tolist() == [1, 1]
    assert read_in_place.tolist() == [2, 2]


class OnGpu(torch.Tensor):
    """A value on a GPU whose non-blocking copies to the host have not arrived when they are read."""

    value: torch.Tensor

    def __new__(cls, value: torch.Tensor) -> OnGpu:
        made: OnGpu = torch.Tensor._make_wrapper_subclass(cls, value.shape, dtype=value.dtype, device="cuda:0")
        made.value = value
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is torch.ops.aten._to_copy.default
        assert kwargs["device"].type == "cpu"
        return torch.full_like(args[0].value, torch.nan) if kwargs.get("non_blocking") else args[0].value.clone()


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_update_waits_for_the_values_of_a_scaler_and_for_a_learning_rate_on_a_gpu(kind: Any) -> None:
    outcomes = []
    for on_gpu in (False, True):
        parameter = nn.Parameter(torch.arange(8.0))
        parameter.grad = torch.full((8,), 64.0)
        optimizer = kind([parameter], lr=0.1, fused=True)
        place = OnGpu if on_gpu else torch.Tensor.clone
        optimizer.grad_scale, optimizer.found_inf = place(torch.tensor(16.0)), place(torch.tensor(0.0))
        optimizer.param_groups[0]["lr"] = place(torch.tensor(0.1))
        CpuOptimizer(optimizer, fuse=True).update([(0, parameter)], defaultdict(dict))
        outcomes.append(parameter.detach().clone())
    assert outcomes[0].isfinite().all()
    assert not outcomes[0].equal(torch.arange(8.0))
    assert outcomes[1].equal(outcomes[0])


# On a GPU


@gpu
@pytest.mark.parametrize("reserve", [0.0, 0.5, 1.0] if DEVICE == "cuda" else [0.5])  # there: tests/accelerator
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("ignore:RNN module weights")  # cuDNN packs them again for each pass
def test_losses_on_a_gpu_are_near_those_of_plain_training(model: str, planner: str, reserve: float) -> None:
    losses = []
    for hybrid in (False, True):
        torch.manual_seed(0)
        network = MODELS[model]()
        for module in network.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        if not hybrid or DEVICE == "simulated":  # its tensors cannot take the place of the CPU's
            network.to(DEVICE)
        optimizer = adamw(network)
        stepper: Any = optimizer
        if hybrid:
            stepper = Hybrid(network, optimizer, planner=PLANNERS[planner], gradient_reserve=reserve, device=DEVICE)
        torch.manual_seed(1)
        seen = []
        for _ in range(10):
            inputs, labels = (one.to(DEVICE) for one in batch(network))
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs), labels)
            loss.backward()
            stepper.step()
            seen.append(loss.item())
        losses.append(seen)
        if hybrid:
            assert all(p.device.type == DEVICE for p in network.parameters())
            assert not stepper.report().simulated
            stepper.close()
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


@pytest.mark.simulated
def test_a_model_whose_parameters_cannot_change_their_device_is_refused_unchanged() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(HybridError, match=r"move the model with model\.to\('simulated:0'\)"):
        Hybrid(model, adamw(model), device="simulated")
    assert model.weight.device.type == "cpu"


@gpu
def test_gpu_reads_host_parameters_at_their_own_address() -> None:
    model = nn.Linear(64, 64).to(DEVICE)
    hybrid = Hybrid(model, adamw(model), planner=lambda costs: ["DHA"] * len(costs), device=DEVICE)
    allocated = torch_module().memory_allocated()
    assert model.weight.device.type == DEVICE
    host = hybrid._slots[model.weight].host
    assert model.weight.data_ptr() == host.data_ptr()
    with torch.no_grad():
        model.weight.fill_(3)
    torch_module().synchronize()
    assert host.eq(3).all()
    assert torch_module().memory_allocated() <= allocated + 1024
    hybrid.close()
