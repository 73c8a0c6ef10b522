"""Hooks the user's optimizer into host memory: its step, its state_dict, its load_state_dict."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fastio.hybrid.errors import HybridError, StateLostError
from fastio.hybrid.optimizer.cpu_optimizer import state_to_host
from fastio.hybrid.optimizer.ssd_states import SsdStates
from fastio.hybrid.optimizer.update_states import States

_GONE = "the Hybrid of this optimizer was garbage-collected, and the state on its store is lost: keep a reference to it"
_hooked: weakref.WeakKeyDictionary[Optimizer, weakref.ref[OptimizerHooks]] = weakref.WeakKeyDictionary()


class Updater(Protocol):
    """Updates the optimizer's parameters in host memory and keeps its state."""

    @property
    def states(self) -> States:
        """Where the optimizer's state is."""

    def update(self) -> None:
        """Update every parameter that has a gradient."""


def refuse_hooked(optimizer: Optimizer) -> None:
    """Raise HybridError if a live Hybrid has hooked this optimizer; remove the hooks of a collected one.

    StateLostError if that one had the optimizer's state on a store.
    """
    hooked = _hooked.get(optimizer)
    hooks = None if hooked is None else hooked()
    if hooks is None:
        return
    if not hooks.is_gone:
        raise HybridError("this optimizer has a Hybrid already: close() that one before making another")
    hooks.close()


class OptimizerHooks:
    """torch's optimizer hooks, until ``close``.

    A hook before ``optimizer.step`` updates in host memory and hides the parameters from the step's own body. Other
    hooks, learning rate schedulers and a GradScaler around it see an ordinary step.
    """

    def __init__(self, optimizer: Optimizer, hybrid: Updater) -> None:
        self._optimizer = optimizer
        self._hybrid = weakref.ref(hybrid)
        self._stores = isinstance(hybrid.states, SsdStates)
        self._removed: list[list[torch.Tensor]] | None = None  # the groups' parameters, hidden during a step
        _hooked[optimizer] = weakref.ref(self)
        self._before = optimizer.register_step_pre_hook(self._before_step)
        self._register_last()
        after = optimizer.register_step_post_hook(self._after_step)
        # Before the user's hooks: they must see the parameters again.
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]
        self._removable = [
            after,
            optimizer.register_state_dict_pre_hook(self._before_state_dict),
            optimizer.register_state_dict_post_hook(self._after_state_dict),
            optimizer.register_load_state_dict_post_hook(self._after_load_state_dict),
        ]

    @property
    def is_gone(self) -> bool:
        """Whether the Hybrid was collected without ``close``. StateLostError if states went with it."""
        gone = self._hybrid() is None
        if gone and self._stores:
            raise StateLostError(_GONE)
        return gone

    def close(self) -> None:
        """Restore the optimizer."""
        self.restore_parameters()
        self._optimizer.__dict__.pop("register_step_pre_hook", None)
        self._before.remove()
        for one in self._removable:
            one.remove()
        _hooked.pop(self._optimizer, None)

    def _register_last(self) -> None:
        """Keep our hook behind hooks that are registered later: they may change gradients."""
        optimizer_ref = weakref.ref(self._optimizer)
        own = self._before.id

        def register(hook: Any) -> RemovableHandle:
            optimizer = optimizer_ref()
            assert optimizer is not None, "its method was called"
            handle = type(optimizer).register_step_pre_hook(optimizer, hook)
            hooks = optimizer._optimizer_step_pre_hooks
            if own in hooks:
                hooks.move_to_end(own)  # type: ignore[attr-defined]
            return handle

        self._optimizer.register_step_pre_hook = register  # type: ignore[method-assign]

    def _before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], settings: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        hybrid = self._hybrid()
        if hybrid is None:
            raise HybridError(
                "the Hybrid of this optimizer was garbage-collected: keep a reference to it, or close() it before"
            )
        self.restore_parameters()  # left by a step that a later hook interrupted
        closure = arguments[1] if len(arguments) > 1 else settings.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        hybrid.update()
        self._removed = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        return None if closure is None else ((arguments[0], lambda: loss), {})

    def _after_step(self, optimizer: Optimizer, arguments: Any, settings: Any) -> None:
        self.restore_parameters()

    def restore_parameters(self) -> None:
        """Restore the groups' parameters, which are hidden between the update and the first hook after a step."""
        if self._removed is not None:
            for group, parameters in zip(self._optimizer.param_groups, self._removed, strict=True):
                group["params"] = parameters
            self._removed = None

    def _ssd_states(self) -> SsdStates | None:
        hybrid = self._hybrid()
        return hybrid.states if hybrid is not None and isinstance(hybrid.states, SsdStates) else None

    def _before_state_dict(self, optimizer: Optimizer) -> None:
        self.restore_parameters()
        if self._stores and self._hybrid() is None:
            raise StateLostError(_GONE)
        stored = self._ssd_states()
        if stored is not None:
            optimizer.state = defaultdict(dict, stored.fetch())

    def _after_state_dict(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if self._ssd_states() is not None:
            optimizer.state = defaultdict(dict)

    def _after_load_state_dict(self, optimizer: Optimizer) -> None:
        state_to_host(optimizer)
        stored = self._ssd_states()
        if stored is not None:
            stored.take_over()
