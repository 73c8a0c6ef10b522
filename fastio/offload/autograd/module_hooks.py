"""Installs the saved-tensor hooks in each thread that runs a forward pass, and tracks which module runs there.

torch's saved-tensor hooks hold for one thread. A module's forward in another thread (nn.DataParallel starts one for
each replica) is seen by hooks that torch calls for all modules; there, in that thread, the saved-tensor hooks are
installed until the outermost module returns.
"""

from __future__ import annotations

import sys
import threading
import warnings
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import Module
from torch.nn.modules import module as global_hooks
from torch.utils.hooks import RemovableHandle

from fastio.offload.autograd import hooks
from fastio.offload.autograd.thread_pass import ThreadPass

if TYPE_CHECKING:
    from fastio.offload.manager import Offload


def is_offloading(pack: Any) -> bool:
    """Return whether a pack hook is that of an Offload in this thread."""
    return any((here := one.here()) is not None and here.pack is pack for one in list(_IN_USE))


class ModuleHooks:
    """The passes of the threads that run under one Offload, by thread.

    Taken are the threads that enter the Offload. Of others, those whose outermost module is one of ``model``, or a
    replica of one. Without a model, those that were started since the main thread entered the Offload, unless several
    are in use. Warns of other threads, and if other saved-tensor hooks replace ours. If no ``with`` statement is in the
    main thread, other threads may well have nothing to do with it: it warns only if the one that entered saved nothing.
    """

    def __init__(self, model: Module | None) -> None:
        self._model = model
        self._passes: dict[int, ThreadPass] = {}  # by threading.get_ident()
        # Threads with a ``with`` statement of their own. No WeakSet: an interrupt in its callbacks would be lost.
        self._entering: list[weakref.ref[threading.Thread]] = []
        self._older: set[threading.Thread] = set()  # that were alive when the Offload was entered
        self._owner: Offload | None = None
        self._lock = threading.Lock()
        # The same in each pass: torch.compile compiles again for another one.
        self._id: int = RemovableHandle(global_hooks._global_forward_hooks).id
        self._warned: set[str] = set()
        self._missed = ""  # a warning of another thread, for a pass that saves nothing
        self.replaced = 0  # module forwards that ran under other saved-tensor hooks

    def here(self) -> ThreadPass | None:
        """Return the pass of this thread."""
        return self._passes.get(threading.get_ident())

    @property
    def waiting_nbytes(self) -> int:
        """Bytes of the tensors of all threads whose operators have not been seen to return."""
        nbytes = 0
        for one in tuple(self._passes.values()):
            nbytes += one.moves_nbytes + one.packing_nbytes
        return nbytes

    def install(self, owner: Offload, here: ThreadPass) -> None:
        """Install the hooks in this thread, whose pass is ``here``. If interrupted, ``remove`` undoes what was done."""
        with self._lock:
            if not self._passes:
                self._older = set(threading.enumerate())
            self._passes[threading.get_ident()] = here
            if not here.taken:
                others = (one for one in self._entering if one() not in (None, here.thread))
                self._entering = [*others, weakref.ref(here.thread)]
            self._owner = owner
            _IN_USE.add(self)
            global_hooks._global_forward_pre_hooks[self._id] = self._enter
            global_hooks._global_forward_hooks[self._id] = self._leave
            global_hooks._global_forward_hooks_always_called[self._id] = True
        here.hooks.push(here.pack, here.unpack)

    def remove(self, here: ThreadPass) -> None:
        """Remove this thread's hooks, also after an exception in the middle of a forward."""
        here.hooks.pop_all()
        here.pack = None  # it holds the manager
        here.modules.clear()
        with self._lock:
            self._passes.pop(threading.get_ident(), None)
            for ident, one in list(self._passes.items()):
                if not one.thread.is_alive():  # its forward ended with SystemExit
                    del self._passes[ident]
            if self._passes:
                return
            _IN_USE.discard(self)
            self._owner = None
            self._older = set()
            global_hooks._global_forward_pre_hooks.pop(self._id, None)
            global_hooks._global_forward_hooks.pop(self._id, None)
            global_hooks._global_forward_hooks_always_called.pop(self._id, None)

    def warn_of_missed(self) -> None:
        """Warn of another thread's forward, which was not taken, after a pass that saved nothing."""
        if self._missed:
            self._warn("missed", self._missed)

    def _enter(self, module: Module, _arguments: Any) -> None:
        owner = self._owner  # once: its own thread may leave now
        if torch.compiler.is_compiling() or owner is None:
            return
        here = self.here() or self._take(owner, module)
        if here is None:
            return
        name = type(module).__name__
        here.modules.append(name)
        if name == "OptimizedModule":
            self._warn(
                "compile",
                "a module made by torch.compile saves its tensors after its whole graph, and backward needs all of "
                "them at once: offloading them costs time and hardly lowers the peak memory",
            )
        top = hooks.top_hooks()  # torch 2.6 does not report it: no warning there
        if (
            top is not None
            and here.pack not in (top[0], getattr(top[0], "beneath", None))  # beneath Hybrid's, which pass on to it
            and torch._C._current_graph_task_id() == -1
        ):
            self._warn_of_other_hooks(top[0], name)

    def _leave(self, _module: Module, _arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        here = self.here()
        if here is None:
            return
        if here.modules:
            here.modules.pop()
        if here.taken and not here.modules and self._owner is not None:
            self._owner.end_thread(here, output is not None or sys.exc_info()[0] is None)

    def _take(self, owner: Offload, module: Module) -> ThreadPass | None:
        """Begin a pass in this thread, which runs this module and no other; None if it is not to be offloaded."""
        if not torch.is_grad_enabled() or torch._C._current_graph_task_id() != -1 or not hooks.allows_hooks():
            return None
        if any(one.here() is not None for one in list(_IN_USE)):
            return None  # under another Offload
        thread = threading.current_thread()
        if any(one() is thread for one in self._entering):
            return None
        if self._model is not None and not _is_part(module, self._model):
            return None
        problem = self._problem(thread)
        if problem:
            text = (
                f"what {type(module).__name__} saves in thread {thread.name} is not offloaded: {problem}. Give the "
                f"Offload the model, or enter it in that thread, too"
            )
            if self._is_main():
                self._warn(problem, text)
            else:
                self._missed = text
            return None
        top = hooks.top_hooks()
        if top is not None:
            self._warn_of_other_hooks(top[0], type(module).__name__)
            return None
        here = owner.begin_thread()
        self.install(owner, here)
        return here

    def _problem(self, thread: threading.Thread) -> str:
        """Return why a thread is not taken; "" if it is."""
        if not hooks.REPORTS_TOP_HOOKS:
            return "torch says since 2.7 whether other saved-tensor hooks are installed there"
        if thread is threading.main_thread():
            return "an interrupt (Ctrl-C) could leave hooks in the main thread"
        if self._model is not None:
            return ""
        if len(_IN_USE) > 1:
            return "several Offloads are in use, and this one was made without a model"
        if thread in self._older:
            return "the thread was started before the Offload was entered, which was made without a model"
        return "" if self._is_main() else "the Offload, made without a model, was not entered in the main thread"

    def _is_main(self) -> bool:
        """Return whether the main thread has entered the Offload."""
        return threading.main_thread() in (one.thread for one in list(self._passes.values()))

    def _warn_of_other_hooks(self, pack: Any, name: str) -> None:
        self.replaced += 1
        pack = pack.func if isinstance(pack, partial) else pack  # another Offload's
        other = getattr(pack, "__qualname__", type(pack).__name__)
        what = "torch.utils.checkpoint" if "checkpoint" in other else f"other saved-tensor hooks ({other})"
        self._warn(what, f"{what} inside the forward pass: what {name} saves there is not offloaded")

    def _warn(self, key: str, text: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warnings.warn(text, UserWarning, stacklevel=2)


_IN_USE: set[ModuleHooks] = set()  # those with a pass in any thread


def _is_part(module: Module, model: Module) -> bool:
    """Return whether a module is one of a model's, or a replica of one, which shares its dictionary of hooks."""
    return any(one._forward_hooks is module._forward_hooks for one in model.modules())
