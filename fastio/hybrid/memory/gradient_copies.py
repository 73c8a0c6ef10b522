"""Gradients on their way to host memory, where the update reads them.

Those that the plan puts in host memory are moved as soon as backward has them, and the parameter's ``grad`` is that
memory from then on: the device has one gradient of these at a time. The others stay on the device, and their copies
overlap backward and, bucket by bucket, the update.

The paper lets some layers (Linear, Embedding, LayerNorm, convolutions) compute into host memory, by ``out=``. Here that
was measured and left out: autograd offers no way to it but layers of our own, which autocast, tied weights, double
backward and whoever replaces a layer's forward would have to know of. What it could save is that one gradient's memory,
and its copy: on one core less than 1 % of a Linear layer's forward and backward at 512 rows and more, 5 to 6 % at 64.
The move is made in the order of compute, so that clipping, a scaler and DDP's reduction find it made.

What happens to a gradient between its copy and the step counts: clipping, a scaler, DDP's reduction, another backward.
Not all of it counts up the tensor's version, so the step compares fingerprints, taken on the device, and copies what
has changed again. A parameter whose early copy was of no use is not copied early any more.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.device_memory import Arrival, Memories
from fastio.hybrid.memory.flat_buffer import HostVector
from fastio.hybrid.memory.layers import Slot


@dataclass(eq=False)
class Gradient:
    """A parameter's gradient. ``host`` is its place in host memory, ``seen`` the same as compute sees it.

    ``arrival``: its copy to that place; ``early``: if that was made in backward, of which tensor, and its fingerprint.
    ``times``: how many backward passes have added to it since the last step, ``usual``: how many did before that.
    """

    slot: Slot
    host: torch.Tensor
    seen: torch.Tensor
    on_host: bool = False
    arrival: Arrival | None = None
    early: tuple[torch.Tensor, torch.Tensor] | None = None
    times: int = 0
    usual: int = 1
    useless: bool = False

    def __post_init__(self) -> None:
        self.address = self.seen.data_ptr()

    def is_in_host_memory(self) -> bool:
        """Whether the parameter's ``grad`` is its place in host memory."""
        grad = self.slot.parameter.grad
        return grad is not None and grad.data_ptr() == self.address


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW = 1024
_BLOCK = 4 << 20  # elements: what the sums take meanwhile is eight bytes each


class Listener(Protocol):
    """Whoever wants to know when backward is through with a parameter."""

    def arriving(self, slot: Slot) -> None:
        """Its gradient is there, as backward made it."""

    def arrived(self, slot: Slot) -> None:
        """Its gradient is where the plan wants it, or on the way."""


@dataclass
class Taken:
    """Gradients moved to host memory as soon as backward had them, those copied in backward, and those in steps."""

    moved: int = 0
    early: int = 0
    copied: int = 0


@dataclass(eq=False)
class Gradients:
    """All of them, in a vector like the parameters'. ``close`` lets go of the parameters."""

    slots: Sequence[Slot]
    vector: HostVector
    memories: Memories
    taken: Taken = field(default_factory=Taken)
    listener: Listener | None = None

    def __post_init__(self) -> None:
        self.of: dict[torch.Tensor, Gradient] = {}
        self._hooks: list[Any] = []
        told = weakref.WeakMethod(self._arrived)
        for slot in self.slots:
            host = self.vector.view(slot.offset, slot.host)
            gradient = Gradient(slot, host, self.vector.seen(slot.offset, slot.host))
            self.of[slot.parameter] = gradient

            def hook(parameter: torch.Tensor) -> None:
                arrived = told()
                if arrived is not None:
                    arrived(parameter)

            self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(hook))

    def put_on_host(self, slots: Iterable[Slot]) -> None:
        """From now on, the gradients of these slots go to host memory at once; those of the others do not."""
        chosen = {slot.parameter for slot in slots}
        for parameter, gradient in self.of.items():
            gradient.on_host = parameter in chosen

    def begin(self, gradients: Iterable[Gradient]) -> None:
        """Queue the copies of those that are not in host memory, and not on the way as they are, in this order."""
        all_of_them = list(gradients)
        for gradient in all_of_them:
            _refuse_sparse(gradient.slot, _grad(gradient))
        fresh = _unchanged(all_of_them)
        for gradient in all_of_them:
            if gradient in fresh:
                continue
            # One that another backward pass has added to came too early; the next will not.
            gradient.useless |= gradient.early is not None and gradient.times == gradient.usual
            gradient.arrival = None
            if not gradient.is_in_host_memory():
                gradient.arrival = self.memories.take(gradient.host, _grad(gradient).detach())
                self.taken.copied += 1

    def reached(self) -> set[torch.Tensor]:
        """The parameters that backward has come to since the last step."""
        return {parameter for parameter, gradient in self.of.items() if gradient.times}

    def finish(self, gradient: Gradient) -> torch.Tensor:
        """The gradient in host memory, all of it."""
        if gradient.arrival is not None:
            gradient.arrival.wait()
        return gradient.host

    def forget(self) -> None:
        """A step is over: backward passes are counted anew."""
        for gradient in self.of.values():
            gradient.arrival = gradient.early = None
            gradient.usual, gradient.times = gradient.times or gradient.usual, 0

    def close(self) -> None:
        """Listen no more. Gradients stay where they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _arrived(self, parameter: torch.Tensor) -> None:
        gradient = self.of[parameter]
        grad = parameter.grad
        if grad is None:
            return
        _refuse_sparse(gradient.slot, grad)
        gradient.times += 1
        if self.listener is not None:
            self.listener.arriving(gradient.slot)
        # One that is itself to be differentiated has a graph, which a copy would cut.
        if not gradient.is_in_host_memory() and not grad.requires_grad:
            if gradient.on_host:
                if gradient.seen.data_ptr() != gradient.address:  # share_memory_() moved it, as the grad that it was
                    gradient.seen = self.vector.seen(gradient.slot.offset, gradient.slot.host)
                gradient.seen.copy_(grad)
                parameter.grad = gradient.seen
                self.taken.moved += 1
            elif self.memories.asynchronous and gradient.times == gradient.usual and not gradient.useless:
                gradient.early = grad, fingerprint(grad)
                gradient.arrival = self.memories.take(gradient.host, grad)
                self.taken.early += 1
        if gradient.on_host:
            start = gradient.slot.offset
            self.vector.forget(start, start + gradient.slot.nbytes)
        if self.listener is not None:
            self.listener.arrived(gradient.slot)


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """The sums of a tensor's bits by row and by column, written as a table: int64, a thousandth of the tensor's size.

    What leaves all of them as they are is no operation of anybody's on gradients.
    """
    bits = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
    found = []
    for start in range(0, bits.numel(), _BLOCK):
        block = bits[start : start + _BLOCK]
        whole = block.numel() // _ROW * _ROW
        table = block[:whole].view(-1, _ROW).to(torch.int64)
        found += [table.sum(0), table.sum(1), block[whole:].to(torch.int64)]
    return torch.cat(found)


def _unchanged(gradients: Sequence[Gradient]) -> set[Gradient]:
    """Those whose early copy is of what is there now. The device is asked once for all of them."""
    asked = [one for one in gradients if one.early is not None and one.early[0] is one.slot.parameter.grad]
    if not asked:
        return set()
    same = [(fingerprint(one.early[0]) == one.early[1]).all() for one in asked if one.early is not None]
    return {one for one, is_same in zip(asked, torch.stack(same).tolist(), strict=True) if is_same}


def _grad(gradient: Gradient) -> torch.Tensor:
    grad = gradient.slot.parameter.grad
    if grad is None:
        raise HybridError(f"the gradient of {gradient.slot.name} was taken away during a step: do it before or after")
    return grad


def _refuse_sparse(slot: Slot, grad: torch.Tensor) -> None:
    if grad.layout is not torch.strided:
        raise HybridError(f"the gradient of {slot.name} is {grad.layout}: give its embedding sparse=False")
