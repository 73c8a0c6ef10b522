"""Reports when a model's modules run, through torch's global module hooks, so that modules stay unchanged."""

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


class ForwardListener(Protocol):
    """Is called about forward passes. ``begin`` and ``end`` surround the outermost of the model's modules."""

    def begin(self, module: Module) -> None:
        """A forward pass begins with this module."""

    def enter(self, module: Module) -> None:
        """A module's forward begins; also called for the outermost module."""

    def leave(self, module: Module, arguments: Any, output: Any) -> None:
        """A module's forward ended; ``output`` is None if it raised an exception."""

    def end(self) -> None:
        """The forward pass ended, with or without an exception."""

    def abort(self) -> None:
        """Called instead of ``leave`` and ``end``, some time after an interrupted (Ctrl-C) forward pass."""


class ModuleHooks:
    """Reports every call of these modules to ``listener`` until ``close``, or until the object is garbage.

    Threads take turns: a pass that begins during another thread's pass or update raises HybridError, because both use
    the same parameters. ``owner``: a process; in a process forked from it, a pass that may have a backward raises
    HybridError too. So does a replica of a module, as ``nn.DataParallel`` makes them: each device would have all
    parameters.
    """

    def __init__(self, modules: Iterable[Module], listener: ForwardListener, owner: int | None = None) -> None:
        self.listener = listener
        self._known = {id(module): module for module in modules}
        self._hook_dicts = {id(module._forward_hooks) for module in self._known.values()}  # a replica has the same one
        self._running: list[Module] = []
        self._thread = 0  # thread of the latest pass or update
        self._updating = False
        self._lock = threading.RLock()
        self._owner = owner
        enter, leave = weakref.WeakMethod(self._enter), weakref.WeakMethod(self._leave)

        def before(module: Module, arguments: Any) -> None:
            method = enter()
            if method is not None:
                method(module)

        def after(module: Module, arguments: Any, output: Any) -> None:
            method = leave()
            if method is not None:
                method(module, arguments, output)

        removable = (
            register_module_forward_pre_hook(before),
            register_module_forward_hook(after, always_call=True),
        )
        self._finalizer = weakref.finalize(self, _remove, removable)

    def close(self) -> None:
        """Remove the hooks. May be called twice."""
        with self.exclusive():
            self._finalizer()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """A context in which no other thread may begin a pass. Ends an interrupted pass of this thread."""
        with self._lock:
            self._take_turn()
            self._abort_interrupted()
            self._updating = True
        try:
            yield
        finally:
            self._updating = False

    def _abort_interrupted(self) -> None:
        """End a pass that was interrupted: torch calls forward hooks for Exceptions, but not for interrupts."""
        if self._running:
            self.listener.abort()
            self._running.clear()

    def refuse_forked(self) -> None:
        """Raise HybridError in a process other than the owner."""
        if self._owner not in (None, os.getpid()):
            raise HybridError(
                f"this Hybrid was made by process {self._owner}, which has its gradients and the optimizer's state in "
                f"files or shared memory: a process forked from it must make a model and a Hybrid of its own"
            )

    def _take_turn(self) -> None:
        me = threading.get_ident()
        if self._thread != me and (self._updating or self._running):
            if self._updating or _is_called_in(self._thread, self._running):
                raise HybridError(
                    "another thread is in a forward pass of this model, or in its update, and both use its parameters: "
                    "let threads take turns (by a lock), or give one a copy of the model"
                )
            self._abort_interrupted()
        self._thread = me

    def _enter(self, module: Module) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling():
            if "_is_replica" in module.__dict__ and id(module._forward_hooks) in self._hook_dicts:
                raise HybridError(
                    f"torch.nn.DataParallel copies all parameters of {type(module).__name__} to every device: use "
                    f"torch.nn.parallel.DistributedDataParallel, a process for each device, and "
                    f"Hybrid(process_group=...), by which they share one host copy"
                )
            return
        if torch.is_grad_enabled():
            self.refuse_forked()
        with self._lock:
            self._take_turn()
            if module in self._running and not _is_within_itself(module):
                self._abort_interrupted()
            if not self._running:
                self.listener.begin(module)
            self._running.append(module)
        self.listener.enter(module)

    def _leave(self, module: Module, arguments: Any, output: Any) -> None:
        if id(module) not in self._known or torch.compiler.is_compiling() or module not in self._running:
            return
        if threading.get_ident() != self._thread:
            return  # its enter raised
        try:
            while self._running:
                last = self._running.pop()
                self.listener.leave(last, arguments, output if last is module else None)
                if last is module:  # an exception left the inner modules without calling their hooks
                    break
        finally:
            if not self._running:
                self.listener.end()


def _is_within_itself(module: Module) -> bool:
    """Return whether a module's forward, which begins now, was called from its own forward."""
    calls = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        calls += frame.f_code is _CALL and frame.f_locals.get("self") is module
        frame = frame.f_back
    return calls > 1


def _is_called_in(thread: int, modules: Iterable[Module]) -> bool:
    """Return whether that thread is in a call of one of these modules."""
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
