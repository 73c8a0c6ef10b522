"""Names what in an object cannot be pickled: its place, its type and the cure, after a save failed."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterator
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

from fastio.errors import FastIOError, UnpicklableError, kind_of, put_before, quoted
from fastio.formats.pt.records import pickled

_BY_NAME = (FunctionType, BuiltinFunctionType, MethodType, type)
_NAMED = "functions and classes are saved by name: define it at the top of a module, or leave it out"
_PLAIN = "save what it holds as tensors and plain data, or leave it out"
_REFUSALS = (pickle.PicklingError, TypeError, AttributeError)  # by pickle itself


def name_unpicklable(error: Exception, obj: Any, argument: str, where: str, protocol: int, module: Any) -> None:
    """Raise UnpicklableError from an error of a save if ``obj`` cannot be pickled; do nothing if that is not why.

    An error of another class than pickle's own, as an object's ``__reduce__`` raises it, gets the place put before its
    message, and is not raised here.

    Args:
        argument: what the message calls the object.
        where: what the message begins with: the path of the file.
        protocol, module: with which the object was pickled.
    """
    if isinstance(error, FastIOError | OSError | MemoryError) or not _fails(obj, protocol, module):
        return
    if isinstance(error, RecursionError):
        put_before(error, f"{where}: {argument} cannot be pickled, it is nested too deeply: ")
        return
    place, value = _find(obj, argument, protocol, module, frozenset())
    said = f"{where}: {place} is {kind_of(value)}, and cannot be saved: "
    if not isinstance(error, _REFUSALS):
        put_before(error, said)
        return
    raise UnpicklableError(f"{said}{error}; {_NAMED if isinstance(value, _BY_NAME) else _PLAIN}") from error


def _fails(obj: Any, protocol: int, module: Any) -> bool:
    try:
        pickled(obj, protocol, pickle_module=module)
    except Exception:
        return True
    return False


def _find(obj: Any, place: str, protocol: int, module: Any, above: frozenset[int]) -> tuple[str, Any]:
    """The place of the innermost part that cannot be pickled, and the part. The object may have cycles."""
    above |= {id(obj)}
    for inner, value in _parts(obj):
        if id(value) not in above and _fails(value, protocol, module):
            return _find(value, f"{place}{inner}", protocol, module, above)
    return place, obj


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """The entries of a container, by the built-in methods; the attributes of another object."""
    if isinstance(obj, dict):
        items = OrderedDict.items(obj) if isinstance(obj, OrderedDict) else dict.items(obj)
        yield from ((f"[{quoted(key)}]", value) for key, value in items)
    elif isinstance(obj, list | tuple):
        values = list.__iter__(obj) if isinstance(obj, list) else tuple.__iter__(obj)
        yield from ((f"[{index}]", value) for index, value in enumerate(values))
    elif not isinstance(obj, _BY_NAME):
        attributes = getattr(obj, "__dict__", None)
        if isinstance(attributes, dict):
            yield from ((f".{name}", value) for name, value in attributes.items())
