"""Installs the saved-tensor hooks, tracks which module runs, and detects hooks that replace ours."""

from __future__ import annotations

import threading
import warnings
from typing import Any

import torch
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from fastio.offload.autograd.hooks import PushedHooks, top_hooks


class ModuleHooks:
    """Our saved-tensor hooks, and the stack of modules that run in the thread that called ``install``.

    Warns if other saved-tensor hooks replace ours.
    """

    def __init__(self) -> None:
        self._running: list[str] = []
        self._removable: list[Any] = []
        self.thread = 0  # threading.get_ident() of the thread that called install
        self._pack: Any = None
        self._hooks = PushedHooks()
        self._warned: set[str] = set()
        self.replaced = 0  # module forwards that ran under other saved-tensor hooks

    @property
    def innermost(self) -> str:
        """The class name of the innermost running module; "" outside of modules."""
        return self._running[-1] if self._running else ""

    def install(self, pack: Any, unpack: Any) -> None:
        """Install the saved-tensor hooks and the module hooks. If interrupted, ``remove`` undoes what was done."""
        self._hooks.push(pack, unpack)
        self.thread = threading.get_ident()
        self._pack = pack
        self._removable.append(register_module_forward_pre_hook(self._enter))
        self._removable.append(register_module_forward_hook(self._leave, always_call=True))

    def remove(self) -> None:
        """Remove all hooks, also after an exception in the middle of a forward."""
        self._hooks.pop_all()
        self._pack = None  # a bound method of the manager: it would keep the manager alive
        self._running.clear()
        for removable in self._removable:
            removable.remove()
        self._removable.clear()

    def _enter(self, module: Module, _arguments: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread or self._pack is None:
            return
        name = type(module).__name__
        self._running.append(name)
        if name == "OptimizedModule":
            self._warn(
                "compile",
                "a module made by torch.compile saves its tensors after its whole graph, and backward needs all of "
                "them at once: offloading them costs time and hardly lowers the peak memory",
            )
        top = top_hooks()  # torch 2.6 does not report it: no warning there
        if top is not None and top[0] is not self._pack and torch._C._current_graph_task_id() == -1:
            self.replaced += 1
            other = getattr(top[0], "__qualname__", type(top[0]).__name__)
            what = "torch.utils.checkpoint" if "checkpoint" in other else f"other saved-tensor hooks ({other})"
            self._warn(what, f"{what} inside the forward pass: what {name} saves there is not offloaded")

    def _leave(self, _module: Module, _arguments: Any, _output: Any) -> None:
        if torch.compiler.is_compiling() or threading.get_ident() != self.thread:
            return
        if self._running:
            self._running.pop()

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(text, UserWarning, stacklevel=2)
