"""torch.save and torch.load replaced by fastio's, for code that is not yours."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator
from typing import Any

import torch

from fastio import api
from fastio.forking import lock_across_forks

_lock = lock_across_forks()
_depth = 0
_originals: tuple[Any, Any] | None = None


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
    api.save(obj, f, format="pt", **arguments)


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
    return api.load_as_torch(f, map_location, weights_only, mmap, pickle_load_args)


def _script_alike(originals: tuple[Any, Any], ours: tuple[Any, Any]) -> None:
    """Have torch.jit.script compile calls of our functions as those of the originals.

    It has a table of functions for which TorchScript has operators, by id; others are compiled from their source.
    """
    operators = torch.jit._builtins._get_builtin_table()
    for original, own in zip(originals, ours, strict=True):
        if id(original) in operators:
            operators[id(own)] = operators[id(original)]


@contextlib.contextmanager
def patch_torch() -> Iterator[None]:
    """Inside, ``torch.save`` and ``torch.load`` are fastio's, in every thread.

    Nests; what was there before comes back when the last context is left, in whatever way. fastio's own calls of
    torch go to ``torch.serialization``, which stays as it is. TorchScript that calls the two is compiled as outside.

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
    try:
        yield
    finally:
        with _lock:
            _depth -= 1
            if _depth == 0 and _originals is not None:
                torch.save, torch.load = _originals
                _originals = None
