"""Sees the operators of a forward pass, and remembers which of them made which bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch._C import (
    _get_dispatch_stack_at,
    _len_torch_dispatch_stack,
    _pop_torch_dispatch_stack,
    _push_on_torch_dispatch_stack,
)
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from fastio.offload.autograd.trace import OperatorCall
from fastio.offload.autograd.version_counters import counter_of
from fastio.offload.recompute.calls import Call, Key, is_plain, note
from fastio.offload.recompute.operators import Kind, kind_of, tensors_in, written


class Recorder(TorchDispatchMode):
    """Records the operators that autograd records, in the thread that called :meth:`install`.

    ``before_write(storage)`` is called with the ``_cdata`` of each storage that an operator is about to write to.
    """

    supports_higher_order_operators = True

    def __init__(self, before_write: Callable[[int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.wanted: Collection[OperatorCall] | None = None  # the calls to record; None: all
        self.judge: Callable[..., Any] | None = None  # called with each operator's output, operator and arguments
        self._is_paused = False  # the operators are ours, not the program's
        self._is_off = False  # likewise, and this mode is not on the stack
        self._before_write = before_write
        self._made: defaultdict[int, dict[Key, tuple[Call, int, Any]]] = defaultdict(dict)  # by storage, and by key
        self._writers: defaultdict[int, set[int]] = defaultdict(set)  # version counters by storage
        self._calls: dict[Any, int] = {}

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let torch.compile compile, as without this mode."""
        return True

    def install(self) -> None:
        """Begin a forward pass."""
        self.wanted = None
        self.__enter__()  # type: ignore[no-untyped-call]

    def remove(self) -> None:
        """End it. May be called again, and after an exception at any place."""
        self.resume()
        above: list[TorchDispatchMode] = []
        while self in _get_current_dispatch_mode_stack():
            top = _get_current_dispatch_mode_stack()[-1]
            top.__exit__(None, None, None)
            if top is not self:
                above.append(top)
        for mode in reversed(above):
            mode.__enter__()
        self._made.clear()
        self._writers.clear()
        self._calls.clear()

    def pause(self) -> None:
        """Do not record what runs until :meth:`resume`."""
        self._is_paused = True
        if self._is_on_top():  # operators are quicker without a mode
            self._is_off = True
            _pop_torch_dispatch_stack(None)

    def resume(self) -> None:
        """Record again. May be called without :meth:`pause`."""
        if self._is_off and not self._is_on_top():
            _push_on_torch_dispatch_stack(self)
        self._is_off = self._is_paused = False

    def _is_on_top(self) -> bool:
        depth = _len_torch_dispatch_stack()
        return depth > 0 and _get_dispatch_stack_at(depth - 1) is self

    def suspend(self) -> None:
        """Leave this thread's stack of modes, which the engine of autograd sets again for the next node of backward.

        Some of torch's formulas ask whether any mode is active, and compute otherwise: their bits would be others.
        """
        above: list[Any] = []
        while _len_torch_dispatch_stack() and self in _get_current_dispatch_mode_stack():
            top = _pop_torch_dispatch_stack(None)
            if top is not self:
                above.append(top)
        for mode in reversed(above):
            _push_on_torch_dispatch_stack(mode)

    def made(self, key: Key) -> tuple[Call, int, Any] | None:
        """Return the operator that made these bytes, the index of its output and its verdict; None if unknown."""
        return self._made[key[0]].get(key) if key[0] in self._made else None

    def is_written_unseen(self, key: Key) -> bool:
        """Return whether something wrote to these bytes that their version counter does not show (``.data``)."""
        return not self._writers.get(key[0], set()) <= {key[1]}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operator, and record it."""
        kwargs = kwargs or {}
        kind = Kind.VIEW if self._is_paused else kind_of(func)
        if kind is Kind.WRITES:
            self._note_writes(func, args, kwargs)
        out = func(*args, **kwargs)
        # Without gradients: inside of autograd Functions and of compiled code, whose kernels may write unseen.
        passed = kind is Kind.VIEW or types
        if not passed and torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._record(func, kind, args, kwargs, out)
        return out

    def _record(self, func: Any, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
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
                if made.key[0] not in self._made:
                    self._writers.pop(made.key[0], None)
                self._made[made.key[0]].setdefault(made.key, (call, index, verdict))

    def _note_writes(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for tensor in written(func, args, kwargs):
            if is_plain(tensor):
                storage = tensor.untyped_storage()._cdata
                self._before_write(storage)
                self._made.pop(storage, None)
                self._writers[storage].add(counter_of(tensor))
