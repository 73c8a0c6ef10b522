"""A model's parameters in host memory, grouped into layers, the unit of movement.

A layer has the parameters of one module, and those of its submodules that are never called themselves (a
MultiheadAttention uses its projection's weights without calling it).
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.nn import Module, Parameter
from torch.nn.parameter import is_lazy

from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.device_memory import DeviceMemory, PendingCopy
from fastio.hybrid.memory.flat_buffer import FlatBuffer, is_dense, lay_out
from fastio.hybrid.memory.freed_memory import FreedMemory
from fastio.hybrid.memory.ranks import Ranks
from fastio.hybrid.planning.costs import DHA
from fastio.offload.autograd.hooks import mark_exchanged


@dataclass(eq=False)
class Slot:
    """A parameter and its place. ``host`` is its memory as the update sees it, ``device_view`` as compute sees it.

    ``device`` is its place in device memory, for copied layers; ``version`` is the parameter's version at the copy.
    ``address`` is that of ``device_view`` when it was laid out.
    """

    name: str
    parameter: Parameter
    offset: int
    host: torch.Tensor
    device_view: torch.Tensor
    layer: Layer
    device: torch.Tensor | None = None
    version: int = -1
    address: int = field(init=False)

    def __post_init__(self) -> None:
        self.address = self.device_view.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes of the parameter."""
        return self.host.numel() * self.host.element_size()


@dataclass(eq=False)
class Layer:
    """Parameters that move together. ``device_copy`` is their copy on the device; None if there is no valid one."""

    name: str
    module: Module
    slots: list[Slot] = field(default_factory=list)
    mode: str = DHA
    runs: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # contiguous, as (device, host)
    device_copy: PendingCopy | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of its parameters."""
        return sum(slot.nbytes for slot in self.slots)


Group = tuple[str, Module, list[tuple[str, Parameter]]]


def parameter_groups(model: Module) -> list[Group]:
    """Return modules with parameters of their own, by name, in model order; a tied parameter is in the first one.

    Raises HybridError for parameters without values, and for two parameters whose memory overlaps.
    """
    seen: set[Parameter] = set()
    groups: list[Group] = []
    for name, module in model.named_modules():
        own = []
        for key, parameter in module.named_parameters(recurse=False):
            if parameter in seen:
                continue
            seen.add(parameter)
            full = f"{name}.{key}" if name else key
            if is_lazy(parameter) or parameter.is_meta:
                raise HybridError(f"parameter {full} has no values yet: materialize the model (call it once) first")
            if parameter.numel():
                own.append((full, parameter))
        if own:
            groups.append((name or type(module).__name__, module, own))
    _refuse_overlaps([pair for *_, own in groups for pair in own])
    return groups


def _refuse_overlaps(named: Iterable[tuple[str, Parameter]]) -> None:
    spans = []
    for name, parameter in named:
        length = 1 + sum((n - 1) * abs(s) for n, s in zip(parameter.shape, parameter.stride(), strict=True))
        start = parameter.data_ptr()
        spans.append((str(parameter.device), start, start + length * parameter.element_size(), name))
    spans.sort()
    for (device, _, end, name), (other_device, start, _, other) in itertools.pairwise(spans):
        if device == other_device and start < end:
            raise HybridError(
                f"parameters {name} and {other} are two Parameters that share memory: to tie them, assign one "
                f"Parameter to both modules; to separate them, clone one"
            )


def _refuse_fixed_types(parameters: Iterable[Parameter], device: torch.device) -> None:
    """Raise HybridError if torch cannot make a parameter one on the device, as it can between the CPU and CUDA."""
    there = torch.empty(0, device=device)
    if not all(torch._has_compatible_shallow_copy_type(parameter, there) for parameter in parameters):
        raise HybridError(
            f"torch cannot change a parameter's device to {device} in place: move the model with "
            f"model.to({str(device)!r}), before you make its optimizer"
        )


def move_to_host(groups: Sequence[Group], device_memory: DeviceMemory, ranks: Ranks) -> tuple[list[Layer], FlatBuffer]:
    """Move these parameters into one host buffer, where they stay; return a layer per module.

    Each parameter is copied and its old memory freed before the next, so little is in memory twice. Ranks that share
    the buffer get the values of the first of them.
    """
    parameters = [parameter for *_, own in groups for _, parameter in own]
    _refuse_fixed_types(parameters, device_memory.device)
    offsets, end = lay_out(p.numel() * p.element_size() for p in parameters)
    flat_buffer = FlatBuffer(end, device_memory, ranks)
    place = iter(offsets)
    layers = []
    freed = FreedMemory()
    for name, module, own in groups:
        layer = Layer(name, module)
        for full, parameter in own:
            offset = next(place)
            # Without gaps and in the same stride order: a matrix's memory order affects how products round.
            like = parameter.data if is_dense(parameter) else parameter.data.clone()
            host = flat_buffer.view(offset, like)
            if ranks.index == 0:
                host.copy_(like)
            slot = Slot(full, parameter, offset, host, mark_exchanged(flat_buffer.device_view(offset, like)), layer)
            parameter.data = slot.device_view
            layer.slots.append(slot)
            freed.add(slot.nbytes)
        layers.append(layer)
    return layers, flat_buffer


def in_call_order(
    model: Module, layers: Sequence[Layer], order: Sequence[Module], reached: Container[torch.Tensor]
) -> list[Layer]:
    """Return the layers in the order of their calls in forward; layers of uncalled modules join their caller's.

    ``reached``: the parameters that backward has reached. Parameters without a gradient or a calling module (frozen, or
    used outside of modules) stay where they are, in no layer. Raises HybridError for a layer that was not called and
    whose parameters have no gradient.
    """
    ranks = {id(module): rank for rank, module in enumerate(order)}
    called = {
        id(layer.module): Layer(layer.name, layer.module, list(layer.slots))
        for layer in layers
        if id(layer.module) in ranks
    }
    parents: dict[int, Module] = {}
    for module in model.modules():
        for child in module.children():
            parents.setdefault(id(child), module)
    for layer in layers:
        if id(layer.module) in called:
            continue
        trained = [slot for slot in layer.slots if slot.parameter.requires_grad]
        idle = [slot.name for slot in trained if slot.parameter not in reached]
        if idle:
            raise HybridError(
                f"layer {layer.name} was never called in the first step, and {', '.join(idle)} got no gradient: "
                f"call it in the first forward pass, freeze it with requires_grad_(False), or remove it"
            )
        home = parents.get(id(layer.module))
        while home is not None and id(home) not in ranks:
            home = parents.get(id(home))
        if trained and home is not None:
            called.setdefault(id(home), Layer(_name_of(model, home), home)).slots.extend(layer.slots)
    return sorted(called.values(), key=lambda layer: ranks[id(layer.module)])


def _name_of(model: Module, module: Module) -> str:
    return next(name for name, other in model.named_modules() if other is module) or type(module).__name__
