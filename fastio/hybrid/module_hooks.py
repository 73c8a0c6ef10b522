"""When a model's modules run: told by torch's global module hooks, so that the modules themselves carry nothing."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any, Protocol

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fastio.hybrid.errors import HybridError

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
    """Tells ``passes`` of every call of these modules until ``close``, or until nobody holds the watch any more.

    Threads take turns: what begins while another one's pass or update is under way is a HybridError, for both use the
    same parameters. ``owner``: a process; in another one, forked from it, what may come to a backward pass is one too.
    """

    def __init__(self, modules: Iterable[Module], passes: Passes, owner: int | None = None) -> None:
        self.passes = passes
        self._known = {id(module): module for module in modules}
        self._running: list[Module] = []
        self._thread = 0  # whose pass or update is the last
        self._updating = False
        self._lock = threading.RLock()
        self._owner = owner
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
        with self.alone():
            self._finalizer()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Inside, no other thread may begin a pass. One of this thread that was interrupted is over."""
        with self._lock:
            self._take_turn()
            self._settle()
            self._updating = True
        try:
            yield
        finally:
            self._updating = False

    def _settle(self) -> None:
        """A forward pass that was interrupted is over: torch tells its hooks of no exception but those of programs."""
        if self._running:
            self.passes.break_off()
            self._running.clear()

    def refuse_forked(self) -> None:
        """Raise HybridError in another process than the owner."""
        if self._owner not in (None, os.getpid()):
            raise HybridError(
                f"this Hybrid was made by process {self._owner}, whose files have its gradients and the optimizer's "
                f"state: a process forked from it must make a model and a Hybrid of its own"
            )

    def _take_turn(self) -> None:
        me = threading.get_ident()
        if self._thread != me and (self._updating or self._running):
            if self._updating or _is_called_in(self._thread, self._running):
                raise HybridError(
                    "another thread is in a forward pass of this model, or in its update, and both use its parameters: "
                    "let threads take turns (by a lock), or give one a copy of the model"
                )
            self._settle()
        self._thread = me

    def _enter(self, module: Module) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling():
            return
        if torch.is_grad_enabled():
            self.refuse_forked()
        with self._lock:
            self._take_turn()
            if module in self._running and not _is_within_itself(module):
                self._settle()
            if not self._running:
                self.passes.begin(module)
            self._running.append(module)
        self.passes.enter(module)

    def _leave(self, module: Module, arguments: Any, output: Any) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling() or module not in self._running:
            return
        if threading.get_ident() != self._thread:
            return  # it was refused
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


def _is_called_in(thread: int, modules: Iterable[Module]) -> bool:
    """Whether that thread is in a call of one of these modules."""
    known = {id(module) for module in modules}
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if frame.f_code is _CALL and id(frame.f_locals.get("self")) in known:
            return True
        frame = frame.f_back
    return False


def _remove(removable: Iterable[Any]) -> None:
    for one in removable:
        one.remove()
