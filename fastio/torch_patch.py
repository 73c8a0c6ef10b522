"""Replaces torch.save and torch.load by fastio's, for code that you cannot change."""

from __future__ import annotations

import pickle
from typing import Any

import torch

from fastio import api
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.runtime.function_patch import FunctionPatch
from fastio.runtime.uncompiled import frames, uncompiled

_lock = lock_across_forks()
_depth = 0
_originals: tuple[Any, Any] | None = None


@uncompiled
def _save(
    obj: Any,
    f: Any,
    pickle_module: Any = pickle,
    pickle_protocol: int = 2,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """torch.save, by fastio."""
    arguments: dict[str, Any] = {
        "pickle_protocol": pickle_protocol,
        "_use_new_zipfile_serialization": _use_new_zipfile_serialization,
        "_disable_byteorder_record": _disable_byteorder_record,
    }
    if pickle_module is not pickle:
        arguments["pickle_module"] = pickle_module
    compiling = frames.set_eval_frame(None)
    try:
        api.save(obj, f, format="pt", **arguments)
    finally:
        frames.set_eval_frame(compiling)


@uncompiled
def _load(
    f: Any,
    map_location: Any = None,
    pickle_module: Any = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """torch.load, by fastio."""
    if pickle_module is not None:
        pickle_load_args["pickle_module"] = pickle_module
    compiling = frames.set_eval_frame(None)
    try:
        return api.load_as_torch(f, map_location, weights_only, mmap, pickle_load_args)
    finally:
        frames.set_eval_frame(compiling)


def _script_alike(originals: tuple[Any, Any], ours: tuple[Any, Any]) -> None:
    """Make torch.jit.script compile calls of our functions like calls of the originals.

    TorchScript has a table, by id, of functions with an operator of their own; it compiles all others from their
    source. If a later torch has no such table, TorchScript that calls torch.save does not compile inside the context.
    """
    table: Any = getattr(getattr(torch.jit, "_builtins", None), "_get_builtin_table", dict)
    operators = table()
    for original, own in zip(originals, ours, strict=True):
        if id(original) in operators:
            operators[id(own)] = operators[id(original)]


def patch_torch() -> FunctionPatch:
    """Make ``torch.save`` and ``torch.load`` fastio's, in every thread.

    fastio itself calls ``torch.serialization``, which stays unchanged. TorchScript that calls the two compiles as it
    does outside.

    Returns:
        A context, whose end undoes the patch, also by an exception; without one, call its ``undo()``, or keep the patch
        for good. Patches nest: the last one to end restores the originals.

    >>> with fastio.patch_torch():
    ...     trainer.train()
    """
    global _depth, _originals
    with _lock:
        if _depth == 0:
            _originals = torch.save, torch.load
            _script_alike(_originals, (_save, _load))
            torch.save, torch.load = _save, _load
        _depth += 1
    return FunctionPatch(_undo)


def _undo() -> None:
    global _depth, _originals
    with _lock:
        _depth -= 1
        if _depth == 0 and _originals is not None:
            torch.save, torch.load = _originals
            _originals = None
