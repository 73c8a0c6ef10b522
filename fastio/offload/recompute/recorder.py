"""Sees the operators of a forward pass, and remembers which of them made which bytes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch

from fastio._native import WeakStorage
from fastio.offload.autograd.trace import OperatorCall
from fastio.offload.autograd.version_counters import counter_of
from fastio.offload.recompute.calls import Call, Key, is_plain, note
from fastio.offload.recompute.dispatch import operator, register, turn
from fastio.offload.recompute.operators import Kind, kind_of, tensors_in, written
from fastio.runtime.uncompiled import uncompiled

_PYTHON = torch._C.DispatchKey.Python


class _Thread(threading.local):
    recorders: tuple[Recorder, ...] = ()


_thread = _Thread()


class Recorder:
    """Records the operators that autograd records, in the thread that called :meth:`install`.

    ``before_write(storage)`` is called with the ``_cdata`` of each storage that an operator is about to write to.
    """

    def __init__(self, before_write: Callable[[int], None]) -> None:
        self.wanted: Collection[OperatorCall] | None = None  # the calls to record; None: all
        self.judge: Callable[..., Any] | None = None  # called with each operator's output, operator and arguments
        self._before_write = before_write
        self._made: defaultdict[int, dict[Key, tuple[Call, int, Any]]] = defaultdict(dict)  # by storage, and by key
        # Version counters by storage. The reference keeps the storage's address from others, which nobody wrote to.
        self._writers: dict[int, tuple[WeakStorage, set[int]]] = {}
        self._calls: dict[Any, int] = {}

    def install(self) -> None:
        """Begin a forward pass."""
        self.wanted = None
        register(_dispatched)
        _thread.recorders = (*_thread.recorders, self)
        turn(True)

    def remove(self) -> None:
        """End it. May be called again, and after an exception at any place."""
        _thread.recorders = tuple([one for one in _thread.recorders if one is not self])
        turn(bool(_thread.recorders))
        self._made.clear()
        self._writers.clear()
        self._calls.clear()

    def pause(self) -> None:
        """Do not record what runs until :meth:`resume`: the operators are ours, not the program's."""
        turn(False)

    def resume(self) -> None:
        turn(True)

    def made(self, key: Key) -> tuple[Call, int, Any] | None:
        """Return the operator that made these bytes, the index of its output and its verdict; None if unknown."""
        return self._made[key[0]].get(key) if key[0] in self._made else None

    def is_written_unseen(self, key: Key) -> bool:
        """Return whether something wrote to these bytes that their version counter does not show (``.data``)."""
        return key[0] in self._writers and self._writers[key[0]][1] != {key[1]}

    def record(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Note an operator that has run."""
        number = self._calls.get(func, 0)
        self._calls[func] = number + 1
        if self.wanted is not None and (func, number) not in self.wanted:
            return
        repeatable = kind is Kind.REPEATABLE
        if kind is Kind.REPEATABLE_ON_CPU:
            repeatable = all(one.device.type == "cpu" for one in tensors_in(list(args)))
        call = note(func, number, args, kwargs, out, repeatable)
        verdict = self.judge(out, func, args, kwargs) if self.judge is not None else None
        for index, made in enumerate(call.outputs):
            if made is not None:
                self._made[made.key[0]].setdefault(made.key, (call, index, verdict))

    def note_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note what an operator is about to write to."""
        for tensor in written(func, args, kwargs):
            if is_plain(tensor):
                storage = tensor.untyped_storage()
                address = storage._cdata
                self._before_write(address)
                self._made.pop(address, None)
                if address not in self._writers:
                    self._writers[address] = WeakStorage(storage), set()
                self._writers[address][1].add(counter_of(tensor))


@uncompiled
def _dispatched(name: str, keys: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
    """Run an operator, and have this thread's recorders record it."""
    recorders = _thread.recorders
    turn(False)
    try:
        func = operator(name)
        kind = kind_of(func)
        if kind is Kind.WRITES:
            for recorder in recorders:
                recorder.note_writes(func, args, kwargs)
        out = func(*args, **kwargs)
        if keys.has(_PYTHON):  # a mode or a subclass of the program: the operators that it ran came here, too
            kind = Kind.OTHER if is_plain([*args, *kwargs.values(), out]) else Kind.VIEW
        # Without gradients: inside of autograd Functions and of compiled code, whose kernels may write unseen.
        if kind is not Kind.VIEW and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            for recorder in recorders:
                recorder.record(func, kind, args, kwargs, out)
        return out
    finally:
        turn(bool(recorders))
