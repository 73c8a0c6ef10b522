"""Moves gradients to host memory beside backward (gradient offload, section IV-D of the MemFerry paper).

The copy of a gradient is queued on the stream to the host, behind the compute that made it, and compute goes on. Until
compute has waited for the copy, the parameter's ``grad`` is the device's gradient, so code in backward that reads it
sees it; then it becomes the gradient's place in host memory, and the device's memory is free for later compute. Compute
waits when more bytes are under way than twice the largest gradient so far has, before backward adds to the same
gradient again, and when backward ends. (Simulated, a larger window is no faster in any of the paper's networks; with
one gradient's bytes compute waits for a matrix whenever a norm follows it.)

A write between copy and wait would be lost. One that torch counts (``_version``) has the gradient copied again. Others
come from DDP's reducer, hooks behind this one, and modules' backward hooks; where there are such, nothing is moved
beside backward. (A write through ``.data`` in a hook of some other tensor is the one that is not seen.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules import module as torch_modules

from fastio.hybrid.memory.device_memory import DeviceMemory, PendingMove
from fastio.hybrid.memory.gradient import Gradient
from fastio.hybrid.planning.backward import WINDOW


class _Backward:
    """A backward pass, which calls this when it ends. torch drops the object without a call if the pass raises."""

    def __init__(self, at_end: Callable[[], None]) -> None:
        self._at_end = at_end

    def __call__(self) -> None:
        self._at_end()


@dataclass(eq=False)
class _Move:
    """A gradient under way: the device's tensor and its version at the copy. ``backward`` is None if that raised."""

    gradient: Gradient
    grad: torch.Tensor
    version: int
    copy: PendingMove
    backward: weakref.ref[_Backward]
    hook: Any


class GradientMoves:
    """The gradients under way to host memory. ``modules``: those whose backward hooks might write to gradients."""

    def __init__(self, device_memory: DeviceMemory, modules: Sequence[Module]) -> None:
        self._device_memory = device_memory
        self._modules = modules
        self._moves: dict[Gradient, _Move] = {}  # the oldest first
        self._nbytes = self._largest = 0  # of all under way; of the largest so far
        self._task = -1  # torch's number of the backward pass that made the last gradient
        self._backward: weakref.ref[_Backward] | None = None
        self._is_observed = False

    def begin(self, gradient: Gradient, grad: torch.Tensor) -> bool:
        """Begin to move a gradient that backward has just made; False if code that runs meanwhile may write to it."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._begin_backward(task)
        parameter = gradient.slot.parameter
        hooks: Any = parameter._post_accumulate_grad_hooks
        if self._backward is None or self._is_observed or len(hooks) > 1:
            return False
        self._finish(gradient)
        copy = self._device_memory.move_to_host(gradient.host, grad)
        hook = parameter.register_hook(lambda _: self._finish(gradient))  # called before the next addition
        self._moves[gradient] = _Move(gradient, grad, grad._version, copy, self._backward, hook)
        self._nbytes += gradient.slot.nbytes
        self._largest = max(self._largest, gradient.slot.nbytes)
        while self._nbytes > WINDOW * self._largest:
            self._finish(next(iter(self._moves)))
        return True

    def finish(self) -> None:
        """Let compute wait for all copies, and put the gradients into their places in host memory."""
        for gradient in list(self._moves):
            self._finish(gradient)
        self._largest = 0

    def _begin_backward(self, task: int) -> None:
        """Have torch call ``finish`` when this pass ends (of nested ones: this one)."""
        for gradient, move in list(self._moves.items()):
            if move.backward() is None:
                self._finish(gradient)
        self._task, self._backward = task, None
        if task == -1 or not self._device_memory.asynchronous:
            return
        backward = _Backward(self.finish)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(backward)
        self._backward = weakref.ref(backward)
        self._is_observed = _is_observed(self._modules)

    def _finish(self, gradient: Gradient) -> None:
        move = self._moves.pop(gradient, None)
        if move is None:
            return
        self._nbytes -= gradient.slot.nbytes
        move.copy.precede_compute()
        move.hook.remove()
        parameter = gradient.slot.parameter
        # After a pass that raised, gradients stay as torch left them.
        if move.backward() is None or parameter.grad is not move.grad:
            return
        if move.grad._version != move.version:
            gradient.place().copy_(move.grad)
        parameter.grad = gradient.place()


def _is_observed(modules: Sequence[Module]) -> bool:
    """Return whether code may run in backward that writes to gradients without counting it as a version."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return True
    if torch_modules._global_backward_hooks or torch_modules._global_backward_pre_hooks:
        return True
    return any(one._backward_hooks or one._backward_pre_hooks for one in modules)
