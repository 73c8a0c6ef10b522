"""Sees the operators of a forward pass, and remembers which of them made which bytes.

A fallback kernel sees them, at a dispatch key that torch leaves free, below autograd and autocast. No dispatch mode:
under one, torch computes some formulas otherwise (cross entropy with weights and smoothing, ``prod``), with other bits.
"""

from __future__ import annotations

import functools
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel

from fastio.offload.autograd.version_counters import counter_of
from fastio.offload.recompute.calls import Call, Key, is_plain, note
from fastio.offload.recompute.operators import Kind, kind_of, tensors_in, written

_KEY: Any = torch._C._parse_dispatch_key("Fake")
_include: Any = torch._C._dispatch_tls_set_dispatch_key_included
_is_included: Any = torch._C._dispatch_tls_is_dispatch_key_included
_of_thread = threading.local()  # ``recorders``: those whose pass is under way


class Recorder:
    """Records the operators that autograd records, in the thread that called :meth:`install`.

    ``before_write(storage)`` is called with the ``_cdata`` of each storage that an operator is about to write to.
    """

    def __init__(self, before_write: Callable[[int], None]) -> None:
        self.wanted: Collection[Any] | None = None  # the operators to record; None: all
        self.judge: Callable[..., Any] | None = None  # called with each operator's output, operator and arguments
        self._before_write = before_write
        self._made: defaultdict[int, dict[Key, tuple[Call, int, Any]]] = defaultdict(dict)  # by storage, and by key
        self._writers: defaultdict[int, set[int]] = defaultdict(set)  # version counters by storage
        self._calls: Counter[Any] = Counter()
        _register()

    def install(self) -> None:
        """Begin a forward pass."""
        self.wanted = None
        _of_thread.recorders = (*_recorders(), self)
        _include(_KEY, True)

    def remove(self) -> None:
        """End it. May be called again, and after an exception at any place."""
        _of_thread.recorders = tuple(one for one in _recorders() if one is not self)
        if not _recorders():
            _include(_KEY, False)
        self._made.clear()
        self._writers.clear()
        self._calls.clear()

    def made(self, key: Key) -> tuple[Call, int, Any] | None:
        """Return the operator that made these bytes, the index of its output and its verdict; None if unknown."""
        return self._made[key[0]].get(key) if key[0] in self._made else None

    def is_written_unseen(self, key: Key) -> bool:
        """Return whether something wrote to these bytes that their version counter does not show (``.data``)."""
        return not self._writers.get(key[0], set()) <= {key[1]}

    def before(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator is about to run."""
        if kind_of(func) is Kind.WRITES:
            for tensor in written(func, args, kwargs):
                if is_plain(tensor):
                    storage = tensor.untyped_storage()._cdata
                    self._before_write(storage)
                    self._made.pop(storage, None)
                    self._writers[storage].add(counter_of(tensor))

    def after(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An operator has run."""
        kind = kind_of(func)
        # Without gradients: inside of autograd Functions and of compiled code, whose kernels may write unseen.
        passed = kind is Kind.VIEW or (self.wanted is not None and func not in self.wanted)
        if not passed and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._record(func, kind, args, kwargs, out)

    def _record(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        repeatable = kind is Kind.REPEATABLE
        if kind is Kind.REPEATABLE_ON_CPU:
            repeatable = all(one.device.type == "cpu" for one in tensors_in(list(args)))
        number = self._calls[func]
        self._calls[func] = number + 1
        call = note(func, number, args, kwargs, out, repeatable)
        verdict = self.judge(out, func, args, kwargs) if self.judge is not None else None
        for index, made in enumerate(call.outputs):
            if made is not None:
                if made.key[0] not in self._made:
                    self._writers.pop(made.key[0], None)
                self._made[made.key[0]].setdefault(made.key, (call, index, verdict))


def unseen(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose operators no recorder sees."""

    @functools.wraps(function)  # other hooks' warnings name it
    def call(*args: Any) -> Any:
        if not _is_included(_KEY):
            return function(*args)
        _include(_KEY, False)
        try:
            return function(*args)
        finally:
            _include(_KEY, True)

    return call


def _recorders() -> tuple[Recorder, ...]:
    return getattr(_of_thread, "recorders", ())


def _run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator, and record it."""
    _include(_KEY, False)
    try:
        recorders = _recorders()
        for recorder in recorders:
            recorder.before(func, args, kwargs)
        out = func(*args, **kwargs)
        for recorder in recorders:
            recorder.after(func, args, kwargs, out)
        return out
    finally:
        _include(_KEY, True)


@functools.cache
def _register() -> tuple[Library, Library]:
    """Register the fallback kernel, once and for ever. It runs in threads that include the key, and in no other."""
    library, views = Library("_", "IMPL"), Library("aten", "IMPL")
    for view in ("detach", "alias"):  # torch makes a Parameter or subclass of what they return, if it is no object yet
        views.impl(view, fallthrough_kernel, "Fake")
    library.fallback(_run, "Fake")
    # Operators of higher order look for a kernel at each key that is included, and know no fallbacks.
    torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS.append(_KEY)
    for operator in torch._ops._higher_order_ops.values():
        operator.fallthrough(_KEY)
    return library, views
