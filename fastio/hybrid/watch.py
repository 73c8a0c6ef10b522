"""When a model's modules run: told by torch's global module hooks, so that the modules themselves carry nothing."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from types import FrameType
from typing import Any, Protocol

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_CALL = Module._call_impl.__code__


class Passes(Protocol):
    """Whoever wants to know. ``begin`` and ``end`` surround the outermost of the model's modules that is called."""

    def begin(self, module: Module) -> None:
        """A forward pass begins with this module."""

    def enter(self, module: Module) -> None:
        """A module's forward begins; also for the outermost one."""

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """A module's forward is over; ``output`` is None where it ended with an exception."""

    def end(self) -> None:
        """The forward pass is over, with or without an exception."""

    def break_off(self) -> None:
        """In the place of ``leave`` and ``end``, some time after a forward pass that was interrupted, as by Ctrl-C."""


class Watch:
    """Tells ``passes`` of every call of these modules until ``close``, or until nobody holds the watch any more."""

    def __init__(self, modules: Iterable[Module], passes: Passes) -> None:
        self.passes = passes
        self._known = {id(module): module for module in modules}
        self._running: list[Module] = []
        enter, leave = weakref.WeakMethod(self._enter), weakref.WeakMethod(self._leave)

        def before(module: Module, arguments: Any) -> None:
            told = enter()
            if told is not None:
                told(module)

        def after(module: Module, arguments: Any, output: Any) -> None:
            told = leave()
            if told is not None:
                told(module, arguments, output)

        removable = (
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        )
        self._finalizer = weakref.finalize(self, _remove, removable)

    def close(self) -> None:
        """Tell nobody any more. Twice is fine."""
        self.settle()
        self._finalizer()

    def settle(self) -> None:
        """A forward pass that was interrupted is over: torch tells its hooks of no exception but those of programs."""
        if self._running:
            self.passes.break_off()
            self._running.clear()

    def _enter(self, module: Module) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling():
            return
        if module in self._running and not _is_within_itself(module):
            self.settle()
        if not self._running:
            self.passes.begin(module)
        self._running.append(module)
        self.passes.enter(module)

    def _leave(self, module: Module, arguments: Any, output: Any) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling() or module not in self._running:
            return
        try:
            while self._running:
                last = self._running.pop()
                self.passes.leave(last, arguments, output if last is module else None)
                if last is module:  # others were left by an exception before they were told of it
                    break
        finally:
            if not self._running:
                self.passes.end()


def _is_within_itself(module: Module) -> bool:
    """Whether a module's forward, which begins, was called by its own forward."""
    calls = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        calls += frame.f_code is _CALL and frame.f_locals.get("self") is module
        frame = frame.f_back
    return calls > 1


def _remove(removable: Iterable[Any]) -> None:
    for one in removable:
        one.remove()
