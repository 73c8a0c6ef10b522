"""Checks the arguments of save and load before a file is opened: torch's errors, in words that help."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from fastio.errors import kind_of, quoted
from fastio.files.open_file import is_path
from fastio.formats.pt.torch_settings import decides_weights_only

_SAFE = ("encoding",)  # what the unpickler of weights_only=True takes
_UNSAFE = ("encoding", "errors", "fix_imports", "buffers")
_ELSEWHERE = {
    "device": "map_location= says where the tensors go",
    "strict": "it is for load_model",
    "dtype": "it is for load_model, or convert the tensors afterwards",
    "framework": "it is for safe_open",
}


def check_writable(f: Any) -> None:
    """Raise TypeError for what is neither a path nor a file object to write to. (torch: AttributeError.)"""
    if not is_path(f) and not hasattr(f, "write"):
        raise TypeError(
            f"f is {kind_of(f)}: expected a path (str or os.PathLike), or a file object with a 'write' method; the "
            "object to save comes first: save(obj, f)"
        )


def check_readable(f: Any) -> None:
    """Raise TypeError for what is neither a path nor a seekable file object. (torch: AttributeError.)"""
    if not is_path(f) and not all(hasattr(f, name) for name in ("read", "seek", "tell")):
        raise TypeError(
            f"f is {kind_of(f)}: expected a path (str or os.PathLike), or a file object with 'read', 'seek' and 'tell'"
        )


def check_map_location(where: Any) -> None:
    """Raise TypeError for a ``map_location`` that torch.load does not take."""
    if not isinstance(where, str | bytes | torch.device | dict | None) and not callable(where):
        raise TypeError(
            f"map_location={quoted(where)} is {kind_of(where)}: expected a device or its name, such as 'cpu' or "
            "'cuda:0', a dict of such names, a function, or None"
        )


def swapped(function: str, first: str, value: object, filename: object) -> TypeError:
    """The error for a call whose first argument is what ``filename`` is to be, and the other way round."""
    return TypeError(
        f"{first}={quoted(value)} is {kind_of(value)}, and filename {kind_of(filename)}: expected {function}({first}, "
        f"filename), the {first} first"
    )


def check_flag(name: str, value: object) -> None:
    """Raise TypeError for what is neither True nor False, nor numpy's: any other text would count as True."""
    kind = type(value)
    if not isinstance(value, bool) and (kind.__module__, kind.__name__.rstrip("_")) != ("numpy", "bool"):
        raise TypeError(f"{name}={quoted(value)} is {kind_of(value)}: expected True or False")


def check_save_keywords(given: Mapping[str, Any]) -> None:
    """Raise TypeError for torch.save's keywords of a wrong type."""
    protocol = given.get("pickle_protocol")
    if protocol is not None and (isinstance(protocol, bool) or not isinstance(protocol, int)):
        raise TypeError(f"pickle_protocol={quoted(protocol)} is {kind_of(protocol)}: expected a number, such as 2")
    _check_module(given.get("pickle_module"), "Pickler")


def _check_module(module: Any, needed: str) -> None:
    if module is not None and not hasattr(module, needed):
        raise TypeError(
            f"pickle_module={quoted(module)} is {kind_of(module)}: expected a module with a {needed}, as pickle is"
        )


def check_load_keywords(given: dict[str, Any], weights_only: bool, load: Callable[..., Any]) -> None:
    """Raise TypeError for a keyword that no unpickler takes, or of a wrong type. A ``pickle_module`` may take others.

    Args:
        given: what torch.load would give its unpickler.
        weights_only: whether that is the safe one, unless the environment decides.
        load: the function, whose own keywords a message names.
    """
    _check_module(given.get("pickle_module"), "Unpickler")
    if not given or given.get("pickle_module") is not None:
        return
    safe = weights_only and not decides_weights_only()
    for name in ("encoding", "errors"):
        if not isinstance(given.get(name, ""), str):
            raise TypeError(f"{name}={quoted(given[name])} is {kind_of(given[name])}: expected a str, as for open()")
    for name in sorted(given.keys() - {"pickle_module"} - set(_SAFE if safe else _UNSAFE)):
        if name in _UNSAFE:
            raise TypeError(f"load() takes {name}= with weights_only=False only")
        own = list(inspect.signature(load).parameters)[1:-1]  # without the file and the further keywords
        alike = difflib.get_close_matches(name, own, n=1)
        hint = f"did you mean {alike[0]}=?" if alike else _ELSEWHERE.get(name, f"expected one of {', '.join(own)}")
        raise TypeError(f"load() got an unexpected keyword argument {name!r}: {hint}")
