"""What Hybrid refuses, and what its messages say to change."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn

from fastio.errors import UnsupportedError
from fastio.hybrid import GpuBudgetError, Hybrid, HybridError
from hybrid_training import MODELS, adamw, batch


def step(model: nn.Module, hybrid: Hybrid) -> None:
    inputs, labels = batch(model)
    nn.functional.cross_entropy(model(inputs), labels).backward()
    hybrid.step()


def of(model: nn.Module, optimizer: Any = None, **settings: Any) -> Hybrid:
    return Hybrid(model, optimizer or adamw(model), device="cpu", **settings)


def test_budget_below_the_largest_layer_raises_an_error_that_names_it() -> None:
    model = MODELS["mlp"]()
    with pytest.raises(
        GpuBudgetError, match=r"the largest layer, 3, has 2.26 KiB \(2,312 bytes\): allow more, or split the layer"
    ):
        of(model, gpu_budget=2311)
    hybrid = of(model, gpu_budget=2312)
    step(model, hybrid)
    assert hybrid.plan is not None


def test_budget_counts_uncalled_modules_with_their_caller() -> None:
    """A projection that attention uses without calling it belongs to attention's layer."""
    model = nn.MultiheadAttention(64, 2, batch_first=True)
    optimizer = torch.optim.SGD(model.parameters())
    hybrid = of(model, optimizer, gpu_budget=192 * 65 * 4)
    inputs = torch.randn(2, 3, 64)
    model(inputs, inputs, inputs)[0].sum().backward()
    with pytest.raises(GpuBudgetError, match=rf"MultiheadAttention, has 65 KiB \({256 * 65 * 4:,} bytes\)"):
        hybrid.step()


def test_zero_offload_without_room_for_all_layers_raises_an_error() -> None:
    model = MODELS["mlp"]()
    hybrid = of(model, gpu_budget="3KB", planner="zero-offload")
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        with pytest.raises(GpuBudgetError, match="use planner 'memferry'"):
            step(model, hybrid)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), "nothing was updated"


@pytest.mark.parametrize("budget", [2400, 3000, 4000])
def test_budget_is_kept(budget: int) -> None:
    model = MODELS["mlp"]()
    hybrid = of(model, gpu_budget=budget)
    step(model, hybrid)
    assert hybrid.plan is not None
    sizes = [sum(p.numel() * 4 for p in layer.parameters()) for layer in model if list(layer.parameters())]
    assert sum(size for size, mode in zip(sizes, hybrid.plan.modes, strict=True) if mode != "DHA") <= budget


def test_unsupported_optimizers_raise_errors() -> None:
    class Own(torch.optim.SGD):
        pass

    model = MODELS["mlp"]()
    for kind in (torch.optim.RMSprop, Own):
        with pytest.raises(
            TypeError, match=f"{kind.__name__}: expected torch.optim's Adam, AdamW or SGD, which Hybrid updates"
        ):
            of(model, kind(model.parameters(), lr=0.1))
    for setting in ("capturable", "differentiable"):
        optimizer = torch.optim.Adam(model.parameters(), **{setting: True})
        with pytest.raises(HybridError, match=f"{setting}=True"):
            of(model, optimizer)


def test_invalid_arguments_raise_errors() -> None:
    model = MODELS["mlp"]()
    with pytest.raises(ValueError, match="expected one of memferry, optimal, zero-offload"):
        of(model, planner="best")
    for reserve in (2, -0.1, float("nan")):
        with pytest.raises(ValueError, match="a share from 0 to 1"):
            of(model, gradient_reserve=reserve)
    with pytest.raises(ValueError, match="gpu_budget='many' is no size"):
        of(model, gpu_budget="many")
    with pytest.raises(TypeError, match="model is a list"):
        Hybrid([model], adamw(model))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a CUDA device, or 'cpu'"):
        Hybrid(model, adamw(model), device="meta")


def test_optimizer_with_a_hybrid_raises_an_error() -> None:
    model = MODELS["mlp"]()
    optimizer = adamw(model)
    first = of(model, optimizer)
    with pytest.raises(HybridError, match=r"has a Hybrid already: close\(\) that one"):
        of(model, optimizer)
    step(model, first)
    first.close()
    step(model, of(model, optimizer))


def test_optimizer_of_another_model_raises_an_error() -> None:
    with pytest.raises(HybridError, match="a parameter that is not the model's"):
        of(MODELS["mlp"](), adamw(MODELS["mlp"]()))


@pytest.mark.parametrize("planned", [False, True])
def test_added_or_replaced_parameters_raise_an_error(planned: bool) -> None:
    model = MODELS["mlp"]()
    optimizer = adamw(model)
    hybrid = of(model, optimizer)
    if planned:
        step(model, hybrid)
    model.register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(HybridError, match=r"scale was added or replaced after Hybrid was made: close\(\) it"):
        step(model, hybrid)
    del model.scale
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    with pytest.raises(HybridError, match="a parameter of the optimizer was added"):
        step(model, hybrid)


def test_replaced_parameter_memory_raises_an_error() -> None:
    model = MODELS["mlp"]()
    hybrid = of(model)
    step(model, hybrid)
    model[0].weight.data = model[0].weight.data.clone()  # type: ignore[operator, union-attr]
    with pytest.raises(HybridError, match=r"the memory of 0.weight was replaced .*copy_\(\) values into it"):
        step(model, hybrid)


def test_unfrozen_parameter_raises_an_error() -> None:
    model = MODELS["mlp"]()
    frozen = model[0].weight.requires_grad_(False)  # type: ignore[operator, union-attr]
    hybrid = of(model)
    step(model, hybrid)
    frozen.requires_grad_(True)
    with pytest.raises(HybridError, match=r"0.weight was frozen when Hybrid was made"):
        step(model, hybrid)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(7, 5), nn.Linear(7, 5)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.used(inputs)


def test_uncalled_layer_raises_an_error() -> None:
    model = Unused()
    before = [p.detach().clone() for p in model.parameters()]
    hybrid = of(model)
    with pytest.raises(HybridError, match=r"layer spare was never called.*spare.weight, spare.bias.*requires_grad_"):
        step(model, hybrid)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), "nothing was updated"
    model = Unused()
    model.spare.requires_grad_(False)
    hybrid = of(model)
    step(model, hybrid)
    assert hybrid.report().layers == ["used"]


def test_distinct_parameters_that_share_memory_raise_an_error() -> None:
    model = Unused()
    model.spare.weight = nn.Parameter(model.used.weight.data)
    with pytest.raises(HybridError, match=r"spare.weight and used.weight are two Parameters.*assign one Parameter"):
        of(model)
    model.spare.weight = nn.Parameter(model.used.weight.data.view(-1)[7:].view(4, 7))
    with pytest.raises(HybridError, match="share memory"):
        of(model)


def test_memory_shared_across_parameter_groups_raises_an_error() -> None:
    model = Unused()
    model.spare.weight = nn.Parameter(model.used.weight.data)
    groups = [{"params": model.used.parameters()}, {"params": model.spare.parameters(), "lr": 0.1}]
    optimizer = torch.optim.AdamW(groups)
    before = [p.data_ptr() for p in model.parameters()]
    with pytest.raises(
        HybridError, match=r"are two Parameters that share memory: to tie them, .* to separate them, clone"
    ):
        of(model, optimizer)
    assert [p.data_ptr() for p in model.parameters()] == before, "nothing was moved"
    model.spare.weight = nn.Parameter(model.used.weight.data.clone())
    step(model.used, of(model.used, torch.optim.AdamW(model.used.parameters())))


@pytest.mark.parametrize("budget", [None, "3KB"])
@pytest.mark.parametrize(
    ("modes", "message"),
    [
        (["DHA"], "1 modes for 4 layers"),
        (["DHA", "CPU", "DHA", "DHA"], "layer 1 has mode 'CPU': expected one of GFGB"),
        (None, "the planner function returned a NoneType: expected a list of modes, one for each layer"),
        ("DHA", "the planner function returned a str: expected a list of modes"),
    ],
)
def test_wrong_planner_function_raises_an_error(modes: Any, message: str, budget: Any) -> None:
    model = MODELS["mlp"]()
    hybrid = of(model, planner=lambda costs: modes, gpu_budget=budget)
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises((TypeError, ValueError), match=message):
        step(model, hybrid)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)), "nothing was updated"


@pytest.mark.skipif(torch.cuda.is_available(), reason="for a machine without a GPU")
def test_device_that_is_not_there_raises_an_error() -> None:
    model = MODELS["mlp"]()
    with pytest.raises(UnsupportedError, match=r"device='cuda': .* or name a device of this machine, such as 'cpu'"):
        Hybrid(model, adamw(model), device="cuda")


def test_parameters_without_values_raise_an_error() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.Linear(3, 5))
    with pytest.raises(HybridError, match=r"parameter 0.weight has no values yet"):
        of(model, torch.optim.SGD(model[1].parameters()))
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 5))
    with pytest.raises(HybridError, match="has no values yet"):
        of(model, torch.optim.SGD(model.parameters()))


def test_sparse_gradients_raise_an_error() -> None:
    model = nn.Embedding(9, 3, sparse=True)
    hybrid = of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(HybridError, match=r"the gradient of weight is torch.sparse_coo: .*sparse=False"):
        model(torch.tensor([1, 2])).sum().backward()
    hybrid.close()


def test_step_of_an_optimizer_whose_hybrid_was_collected_raises_an_error() -> None:
    model = MODELS["mlp"]()
    optimizer = adamw(model)
    step(model, of(model, optimizer))
    gc.collect()
    with pytest.raises(HybridError, match="keep a reference to it, or close"):
        optimizer.step()


def test_close_restores_the_optimizer() -> None:
    model = MODELS["mlp"]()
    optimizer = adamw(model)
    hybrid = of(model, optimizer, optimizer_store=None)
    step(model, hybrid)
    hybrid.close()
    hybrid.close()
    step_before = [p.detach().clone() for p in model.parameters()]
    optimizer.step()
    assert not torch.equal(step_before[0], next(model.parameters()))
    with pytest.raises(HybridError, match="closed"):
        hybrid.step()


def test_data_parallel_replica_raises_an_error_that_names_ddp() -> None:
    model = MODELS["mlp"]()
    hybrid = of(model)
    child = model._replicate_for_data_parallel()._modules["0"]._replicate_for_data_parallel()
    child._parameters = dict(model[0]._parameters)
    with pytest.raises(HybridError, match=r"copies all parameters.*DistributedDataParallel.*process_group"):
        child(batch(model)[0])
    step(model, hybrid)


def test_model_has_one_hybrid_at_a_time() -> None:
    """Also with an optimizer for each half of it: the second one would take the first one's parameters away."""
    model = MODELS["mlp"]()
    parameters = list(model.parameters())
    first = of(model, torch.optim.SGD(parameters[:2]))
    with pytest.raises(
        HybridError, match=r"0.weight has a Hybrid already.*close\(\) that one, or give all parameters to one"
    ):
        of(model, torch.optim.SGD(parameters[2:]))
    with pytest.raises(HybridError, match="weight has a Hybrid already"):
        of(model[0], torch.optim.SGD(model[0].parameters()))  # type: ignore[index]
    first.close()
    step(model, of(model, torch.optim.SGD(parameters)))
