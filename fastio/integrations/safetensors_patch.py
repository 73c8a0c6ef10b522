"""Replaces safetensors' load_file, save_file and safe_open by fastio's in every module that has them."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from fastio.integrations.missing_library import missing
from fastio.runtime.fork_safe_lock import lock_across_forks
from fastio.runtime.function_patch import FunctionPatch

_lock = lock_across_forks()
_depth = 0
_replaced: list[tuple[Any, Any]] = []  # (the original, fastio's)


def patch_safetensors() -> FunctionPatch:
    """Make safetensors' functions for torch fastio's, in every thread and in every module that imported them.

    These are ``safetensors.torch.load_file`` and ``save_file``, with them ``load_model`` and ``save_model``, which call
    them, and ``safetensors.safe_open``. Arguments, results and kinds of errors stay safetensors': fastio's errors are
    instances of ``SafetensorError`` too. Tensors have memory of their own instead of the mapped file's. A save is
    atomic and durable.

    Other frameworks than torch, and what fastio cannot do, such as dtypes that torch lacks, go to the originals; the
    logger ``fastio.integrations`` has a line for each. ``safetensors.torch.load`` and ``save``, which take and return
    bytes, are not replaced.

    Returns:
        A context, whose end undoes the patch; without one, call its ``undo()``, or keep the patch for good. Patches
        nest: the last one to end restores the originals, also in modules that were imported meanwhile. References in
        other places than the names of modules (``functools.partial``, attributes of classes) are not found.

    Raises LibraryMissingError (an ImportError) if safetensors is not installed.

    >>> with fastio.patch_safetensors():
    ...     model = AutoModel.from_pretrained("folder")
    """
    global _depth
    try:
        import safetensors.torch
    except ImportError as error:
        raise missing("safetensors", error) from error
    from fastio.integrations.safetensors_calls import loader, opener, saver

    with _lock:
        if _depth == 0:
            load_file, save_file = safetensors.torch.load_file, safetensors.torch.save_file
            _replaced.append((load_file, loader(load_file)))
            _replaced.append((save_file, saver(save_file)))
            _replaced.append((safetensors.safe_open, opener(safetensors.safe_open)))
            try:
                exchange(_replaced)
            except BaseException:
                _restore()
                raise
        _depth += 1
    return FunctionPatch(_undo)


def _undo() -> None:
    global _depth
    with _lock:
        _depth -= 1
        if _depth == 0:
            _restore()


def _restore() -> None:
    exchange([(ours, original) for original, ours in _replaced])
    _replaced.clear()


def exchange(pairs: list[tuple[Any, Any]]) -> None:
    """Put the second of each pair in the place of the first, in all modules."""
    others = {id(old): new for old, new in pairs}
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType):
            # Not by attributes: some modules import what they lack when they are asked for it.
            names = object.__getattribute__(module, "__dict__")
            for name, value in list(names.items()):
                if id(value) in others:
                    names[name] = others[id(value)]
