"""The user's optimizer, turned to host memory: its step, its state_dict, its load_state_dict."""

from __future__ import annotations

import weakref
from collections import defaultdict
from typing import Any, Protocol

import torch
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from fastio.hybrid.errors import HybridError, StateLostError
from fastio.hybrid.optimizer.cpu_optimizer import to_host
from fastio.hybrid.optimizer.ssd_states import OnStore
from fastio.hybrid.optimizer.update_states import States

_GONE = "the Hybrid of this optimizer is gone, and with it the state on its store: keep it"
_taken: weakref.WeakKeyDictionary[Optimizer, weakref.ref[OptimizerHooks]] = weakref.WeakKeyDictionary()


class Updater(Protocol):
    """Updates the optimizer's parameters in host memory, and keeps the optimizer's state."""

    @property
    def states(self) -> States:
        """Where the optimizer's state is."""

    def update(self) -> None:
        """Update every parameter that has a gradient."""


def refuse_taken(optimizer: Optimizer) -> None:
    """Raise HybridError for an optimizer that another Hybrid has turned to host memory; let go of one that is gone.

    StateLostError where that one had the optimizer's state on a store.
    """
    taken = _taken.get(optimizer)
    hooks = None if taken is None else taken()
    if hooks is None:
        return
    if not hooks.is_gone:
        raise HybridError("this optimizer has a Hybrid already: close() that one before making another")
    hooks.close()


class OptimizerHooks:
    """torch's own hooks of an optimizer, until ``close``.

    ``optimizer.step`` updates in host memory before its own body, which then finds no parameters; hooks, learning rate
    schedulers and a GradScaler around it see an ordinary step.
    """

    def __init__(self, optimizer: Optimizer, hybrid: Updater) -> None:
        self._optimizer = optimizer
        self._hybrid = weakref.ref(hybrid)
        self._stores = isinstance(hybrid.states, OnStore)
        self._lent: list[list[torch.Tensor]] | None = None  # the groups' parameters, during a step
        _taken[optimizer] = weakref.ref(self)
        self._before = optimizer.register_step_pre_hook(self._step)
        self._stay_last()
        after = optimizer.register_step_post_hook(self._stepped)
        # Before those that were registered earlier: they are to see what a step leaves.
        optimizer._optimizer_step_post_hooks.move_to_end(after.id, last=False)  # type: ignore[attr-defined]
        self._removable = [
            after,
            optimizer.register_state_dict_pre_hook(self._fetch),
            optimizer.register_state_dict_post_hook(self._drop),
            optimizer.register_load_state_dict_post_hook(self._loaded),
        ]

    @property
    def is_gone(self) -> bool:
        """Whether nobody has the Hybrid any more, which was never closed. StateLostError if states went with it."""
        gone = self._hybrid() is None
        if gone and self._stores:
            raise StateLostError(_GONE)
        return gone

    def close(self) -> None:
        """Leave the optimizer as it was."""
        self.give_back()
        self._optimizer.__dict__.pop("register_step_pre_hook", None)
        self._before.remove()
        for one in self._removable:
            one.remove()
        _taken.pop(self._optimizer, None)

    def _stay_last(self) -> None:
        """Behind hooks that are registered later: they may change gradients."""
        told = weakref.ref(self._optimizer)
        own = self._before.id

        def register(hook: Any) -> RemovableHandle:
            optimizer = told()
            assert optimizer is not None, "it is its method that was called"
            handle = type(optimizer).register_step_pre_hook(optimizer, hook)
            hooks = optimizer._optimizer_step_pre_hooks
            if own in hooks:
                hooks.move_to_end(own)  # type: ignore[attr-defined]
            return handle

        self._optimizer.register_step_pre_hook = register  # type: ignore[method-assign]

    def _step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], settings: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        hybrid = self._hybrid()
        if hybrid is None:
            raise HybridError("the Hybrid of this optimizer is gone, and what it held: keep it, or close() it before")
        self.give_back()  # of a step that a later hook broke off
        closure = arguments[1] if len(arguments) > 1 else settings.get("closure")
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        hybrid.update()
        self._lent = [group["params"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["params"] = []
        return None if closure is None else ((arguments[0], lambda: loss), {})

    def _stepped(self, optimizer: Optimizer, arguments: Any, settings: Any) -> None:
        self.give_back()

    def give_back(self) -> None:
        """The groups have their parameters again; they do, but between the update and the first hook behind a step."""
        if self._lent is not None:
            for group, parameters in zip(self._optimizer.param_groups, self._lent, strict=True):
                group["params"] = parameters
            self._lent = None

    def _stored(self) -> OnStore | None:
        hybrid = self._hybrid()
        return hybrid.states if hybrid is not None and isinstance(hybrid.states, OnStore) else None

    def _fetch(self, optimizer: Optimizer) -> None:
        self.give_back()
        if self._stores and self._hybrid() is None:
            raise StateLostError(_GONE)
        stored = self._stored()
        if stored is not None:
            optimizer.state = defaultdict(dict, stored.fetch())

    def _drop(self, optimizer: Optimizer, state: dict[str, Any]) -> None:
        if self._stored() is not None:
            optimizer.state = defaultdict(dict)

    def _loaded(self, optimizer: Optimizer) -> None:
        to_host(optimizer)
        stored = self._stored()
        if stored is not None:
            stored.adopt()
