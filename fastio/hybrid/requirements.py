"""Checks for what Hybrid cannot train, before anything is changed. Each message says what to change."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

import torch
from torch.nn import Module
from torch.optim import Optimizer

from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.layers import Group, Slot
from fastio.hybrid.planning.costs import GpuBudgetError
from fastio.sizes import exact_size


def check_parameters(model: Module, optimizer: Optimizer) -> None:
    """Raise HybridError if the optimizer has parameters that the model does not have."""
    known = set(model.parameters())
    for number, group in enumerate(optimizer.param_groups):
        if not known.issuperset(group["params"]):
            raise HybridError(
                f"group {number} of the optimizer has a parameter that is not the model's: make the optimizer from "
                f"model.parameters(), after the last change of the model"
            )


def check_held(groups: Sequence[Group], held: Iterable[Mapping[torch.Tensor, Slot]]) -> None:
    """Raise HybridError for a parameter among those that Hybrids which are not closed have."""
    for slots in held:
        for name, parameter in (pair for *_, own in groups for pair in own):
            if parameter in slots:
                raise HybridError(
                    f"{name} has a Hybrid already, and a model has one at a time: close() that one, or give all "
                    f"parameters to one optimizer, in groups"
                )


def check_budget(layers: Sequence[tuple[str, int]], nbytes: int | None) -> None:
    """Raise GpuBudgetError if the largest of these (name, bytes) layers has more than ``nbytes``."""
    name, most = max(layers, key=lambda layer: layer[1], default=("", 0))
    if nbytes is not None and nbytes < most:
        raise GpuBudgetError(
            f"gpu_budget is {exact_size(nbytes)}, and the largest layer, {name}, has {exact_size(most)}: allow "
            f"more, or split the layer"
        )


def check_all_updated(model: Module, optimizer: Optimizer) -> None:
    """Raise HybridError for a trainable parameter that is in no group of the optimizer of ranks that share it."""
    updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.numel() and parameter not in updated:
            raise HybridError(
                f"{name} is trainable and in no group of the optimizer, and ranks that share it would each update it: "
                f"put it into the optimizer, freeze it with requires_grad_(False), or leave process_group out"
            )


def check_shared(gradient_reserve: float, optimizer_store: object) -> None:
    """Raise HybridError for settings that ranks with one host copy cannot have."""
    if gradient_reserve < 1:
        raise HybridError(
            f"gradient_reserve is {gradient_reserve}, and ranks that share memory add up gradients on their devices: "
            f"leave it 1, or leave process_group out, which gives each rank a host copy of its own"
        )
    if optimizer_store is not None:
        raise HybridError(
            f"optimizer_store={optimizer_store!r} is for one process, and process_group shares the optimizer's state "
            f"in memory: leave one of them out"
        )


def check_written_in_forward(model: Module) -> None:
    """Raise HybridError for modules whose forward scales a weight: each rank would scale the one that they share."""
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Embedding | torch.nn.EmbeddingBag) and module.max_norm is not None:
            raise HybridError(
                f"{name} has max_norm={module.max_norm}, by which forward scales its weight, and ranks that share it "
                f"would do so at once: scale it on one rank after each step, or leave process_group out"
            )


def check_unchanged(
    model: Module,
    updated: Iterable[torch.Tensor],
    slots: Mapping[torch.Tensor, Slot],
    trained: Container[torch.Tensor],
) -> None:
    """Raise HybridError for parameters that were added, replaced, moved or unfrozen since they were laid out.

    ``updated``: the optimizer's parameters. ``slots``: the laid out ones, by parameter. ``trained``: those that had
    gradients then.
    """
    added = [name for name, p in model.named_parameters() if p not in slots and p.numel()]
    if added or any(p not in slots and p.numel() for p in updated):
        raise HybridError(
            f"{', '.join(added) or 'a parameter of the optimizer'} was added or replaced after Hybrid was made: "
            f"close() it and make another"
        )
    for slot in slots.values():
        # A storage may also move under its views (share_memory_(), a torch.multiprocessing queue).
        if not slot.parameter.data_ptr() == slot.device_view.data_ptr() == slot.address:
            raise HybridError(
                f"the memory of {slot.name} was replaced after Hybrid was made (by model.to(), data = ..., or "
                f"share_memory_()): copy_() values into it instead, or close() Hybrid before and make another after"
            )
        if slot.parameter.requires_grad and slot.parameter not in trained:
            raise HybridError(
                f"{slot.name} was frozen when Hybrid was made, and is trainable now: close() it and make another"
            )
