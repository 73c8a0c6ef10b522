"""Copies gradients to host memory, where the update reads them.

A gradient that the plan puts in host memory is moved while backward goes on, and becomes the parameter's ``grad`` there
(:mod:`fastio.hybrid.memory.gradient_moves`). The others stay on the device; their copies overlap the update, chunk by
chunk, and backward too, if backward moves none.

The paper lets some layers (Linear, Embedding, LayerNorm, convolutions) compute into host memory by ``out=``. That was
measured and left out: in autograd it needs layers of our own, which autocast, tied weights, double backward and code
that replaces a layer's forward would all have to support. It would save the memory of three gradients, and no time: the
kernel writes over the link for as long as the copy takes, and meanwhile does not compute for the next layer. Without a
GPU it saves a copy: on one core less than 1 % of a Linear layer's forward and backward at 512 rows and more, 5 to 6 %
at 64.

A gradient may change between its early copy and the step: by clipping, a scaler, DDP's reduction or another backward.
Not all of these increase the tensor's version, so the step compares fingerprints, computed on the device, and copies
again what changed. A parameter whose early copy was useless is not copied early again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.nn import Module

from fastio.hybrid.errors import HybridError
from fastio.hybrid.memory.chunks import in_memory_order
from fastio.hybrid.memory.device_memory import DeviceMemory, PendingCopy
from fastio.hybrid.memory.flat_buffer import FlatBuffer
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.memory.gradient_moves import GradientMoves
from fastio.hybrid.memory.layers import Slot
from fastio.hybrid.planning import costs

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ROW = 1024
_BLOCK = 4 << 20  # elements per step: the sums use eight bytes for each


class GradientListener(Protocol):
    """Is called when backward has produced a gradient."""

    def gradient_ready(self, slot: Slot) -> None:
        """The gradient is there, as backward made it."""


@dataclass
class CopyCounts:
    """Gradients moved to host memory in backward, copied early in backward, and copied in steps.

    ``beside``: those of ``moved`` whose move overlaps backward.
    """

    moved: int = 0
    beside: int = 0
    early: int = 0
    copied: int = 0


@dataclass(eq=False)
class GradientCopies:
    """All gradients, in a buffer laid out like the parameters'. ``close`` removes the hooks.

    ``modules``: the model's. ``shared``: other ranks copy gradients to the same memory, in their updates.
    """

    slots: Sequence[Slot]
    flat_buffer: FlatBuffer
    device_memory: DeviceMemory
    modules: Sequence[Module]
    shared: bool = False
    counts: CopyCounts = field(default_factory=CopyCounts)
    listener: GradientListener | None = None

    def __post_init__(self) -> None:
        self.by_parameter: dict[torch.Tensor, Gradient] = {}
        self._moves = GradientMoves(self.device_memory, self.modules)
        self._any_on_host = False
        self._hooks: list[Any] = []
        weak_method = weakref.WeakMethod(self._accumulated)
        for slot in self.slots:
            host = self.flat_buffer.view(slot.offset, slot.host)
            view = self.flat_buffer.device_view(slot.offset, slot.host)
            gradient = Gradient(slot, self.flat_buffer, host, view)
            self.by_parameter[slot.parameter] = gradient

            def hook(parameter: torch.Tensor) -> None:
                method = weak_method()
                if method is not None:
                    method(parameter)

            self._hooks.append(slot.parameter.register_post_accumulate_grad_hook(hook))

    def put_on_host(self, slots: Iterable[Slot]) -> None:
        """Move the gradients of these slots to host memory from now on, and no others."""
        chosen = {slot.parameter for slot in slots}
        for parameter, gradient in self.by_parameter.items():
            gradient.on_host = parameter in chosen
        self._any_on_host = bool(chosen)

    def start_copies(self, gradients: Iterable[Gradient]) -> None:
        """Begin the copies, in this order, of gradients without an up-to-date copy in host memory."""
        all_of_them = list(gradients)
        for gradient in all_of_them:
            _refuse_sparse(gradient.slot, _grad(gradient))
        fresh = _unchanged(all_of_them)
        for gradient in all_of_them:
            if gradient in fresh:
                continue
            # If more backward passes than usual added to it, its copy was too early only this time.
            gradient.useless |= gradient.early is not None and gradient.times == gradient.usual
            gradient.host_copies = ()
            if not gradient.is_in_host_memory():
                gradient.host_copies = self._begin_copies(gradient, _grad(gradient).detach())
                self.counts.copied += 1

    def finish_moves(self) -> None:
        """Let compute wait for the gradients that are moved, if backward has not ended or was interrupted."""
        self._moves.finish()

    def reached_parameters(self) -> set[torch.Tensor]:
        """Return the parameters that backward has reached since the last step."""
        return {parameter for parameter, gradient in self.by_parameter.items() if gradient.times}

    def finish(self, gradient: Gradient, stop: int) -> torch.Tensor:
        """Return a gradient in host memory, after a wait for its elements before ``stop``, in memory order."""
        for copy in gradient.host_copies[: -(-stop * gradient.host.element_size() // costs.BUCKET)]:
            copy.wait()
        return gradient.host

    def end_step(self) -> None:
        """End a step: count backward passes anew."""
        for gradient in self.by_parameter.values():
            gradient.host_copies, gradient.early = (), None
            gradient.usual, gradient.times = gradient.times or gradient.usual, 0

    def close(self) -> None:
        """Remove the hooks. Gradients stay where they are."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._moves.finish()

    def _accumulated(self, parameter: torch.Tensor) -> None:
        gradient = self.by_parameter[parameter]
        grad = parameter.grad
        if grad is None:
            return
        _refuse_sparse(gradient.slot, grad)
        gradient.times += 1
        if self.listener is not None:
            self.listener.gradient_ready(gradient.slot)
        # A gradient with a graph (double backward) is not copied: a copy would cut the graph.
        if not gradient.is_in_host_memory() and not grad.requires_grad:
            if gradient.on_host:
                self._move(gradient, grad)
            elif self._copies_early(gradient):
                gradient.early = grad, fingerprint(grad)
                gradient.host_copies = self._begin_copies(gradient, grad)
                self.counts.early += 1
        if gradient.on_host:
            start = gradient.slot.offset
            self.flat_buffer.forget(start, start + gradient.slot.nbytes)

    def _begin_copies(self, gradient: Gradient, grad: torch.Tensor) -> list[PendingCopy]:
        """Begin to copy a gradient to its place, in pieces whose update does not wait for the others."""
        host = gradient.host
        if host.nbytes <= costs.BUCKET or grad.stride() != host.stride():
            return [self.device_memory.copy_to_host(host, grad)]
        to, of = in_memory_order(host), in_memory_order(grad)
        step = costs.BUCKET // host.element_size()
        return [
            self.device_memory.copy_to_host(to[start : start + step], of[start : start + step])
            for start in range(0, host.numel(), step)
        ]

    def _move(self, gradient: Gradient, grad: torch.Tensor) -> None:
        if self._moves.begin(gradient, grad):
            self.counts.beside += 1
        else:
            gradient.place().copy_(grad)
            gradient.slot.parameter.grad = gradient.place()
        self.counts.moved += 1

    def _copies_early(self, gradient: Gradient) -> bool:
        """Return whether to copy a gradient that stays on the device now. Moved ones need the link in backward."""
        early = self.device_memory.asynchronous and not self._any_on_host and not self.shared
        return early and gradient.times == gradient.usual and not gradient.useless


def fingerprint(tensor: torch.Tensor) -> torch.Tensor:
    """Return the row and column sums of a tensor's bits, as a table: int64, a thousandth of the tensor's size.

    No operation that is used on gradients changes a tensor and leaves all of these sums unchanged.
    """
    numbers = torch.view_as_real(tensor.detach().resolve_conj()) if tensor.is_complex() else tensor.detach()
    bits = numbers.contiguous().view(-1).view(_INTEGERS[numbers.element_size()])
    found = []
    for start in range(0, bits.numel(), _BLOCK):
        block = bits[start : start + _BLOCK]
        whole = block.numel() // _ROW * _ROW
        table = block[:whole].view(-1, _ROW).to(torch.int64)
        found += [table.sum(0), table.sum(1), block[whole:].to(torch.int64)]
    return torch.cat(found)


def _unchanged(gradients: Sequence[Gradient]) -> set[Gradient]:
    """Return the gradients whose early copy is still up to date. One device round trip for all."""
    asked = [one for one in gradients if one.early is not None and one.early[0] is one.slot.parameter.grad]
    if not asked:
        return set()
    same = [(fingerprint(one.early[0]) == one.early[1]).all() for one in asked if one.early is not None]
    return {one for one, is_same in zip(asked, torch.stack(same).tolist(), strict=True) if is_same}


def _grad(gradient: Gradient) -> torch.Tensor:
    grad = gradient.slot.parameter.grad
    if grad is None:
        raise HybridError(f"the gradient of {gradient.slot.name} was removed during a step: remove it before or after")
    return grad


def _refuse_sparse(slot: Slot, grad: torch.Tensor) -> None:
    if grad.layout is not torch.strided:
        raise HybridError(f"the gradient of {slot.name} is {grad.layout}: give its embedding sparse=False")
