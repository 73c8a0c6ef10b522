"""Captures a caller's tree for pickling: objects with a state are replaced by their ``state_dict``, generators too."""

from __future__ import annotations

import copyreg
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastio.checkpoint.generators import saved_generator
from fastio.errors import CheckpointError, kind_of

_slot_names: Callable[[type], list[str]] = copyreg._slotnames  # type: ignore[attr-defined]

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""Types whose values hold no other objects. Most values of a state have them."""
_BUILT_IN = frozenset({dict, OrderedDict, list, tuple})


def is_stateful(obj: Any) -> bool:
    """Return whether an object can save and load its state, as modules, optimizers and schedulers do.

    Only its class is examined: an object may have a ``__getattr__`` for any name, even one with side effects.
    """
    kind = type(obj)
    if kind in ATOMS or kind in _BUILT_IN or issubclass(kind, type) or torch.Tensor in kind.__mro__:
        return False
    return _has_method(kind, "state_dict") and _has_method(kind, "load_state_dict")


def is_container(obj: Any) -> bool:
    """Return whether an object's entries are saved and restored one by one; other objects are pickled whole."""
    return isinstance(obj, (dict, list, tuple)) and type(obj) is not torch.Size


def entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (key or index, value) pairs of a container, by the built-in methods, whatever its class overrides."""
    if isinstance(container, OrderedDict):
        return OrderedDict.items(container)
    if isinstance(container, dict):
        return dict.items(container)
    return enumerate(list.__iter__(container) if isinstance(container, list) else tuple.__iter__(container))


def find_holders(tree: Any, is_wanted: Callable[[Any], bool]) -> set[int]:
    """Return the ids of the containers in a tree that reach a wanted object. The tree may have cycles."""
    if is_wanted(tree) or not is_container(tree):
        return set()
    parents: dict[int, list[int]] = {id(tree): []}  # by the ids of containers
    found: list[int] = []
    left = [tree]
    while left:
        container = left.pop()
        values = [value for _, value in entries(container)]
        if ATOMS.issuperset(map(type, values)):
            continue
        for value in values:
            if type(value) in ATOMS:
                continue
            if is_wanted(value):
                found.append(id(container))
            elif is_container(value):
                if id(value) not in parents:
                    parents[id(value)] = []
                    left.append(value)
                parents[id(value)].append(id(container))
    holders: set[int] = set()
    while found:
        holder = found.pop()
        if holder not in holders:
            holders.add(holder)
            found.extend(parents[holder])
    return holders


def capture(state: Any) -> Any:
    """Return the tree with each object that has a state replaced by it. No tensor is copied, ``state`` is not changed.

    A container that holds no object with a state is returned itself. Others are copied once each, with their type and
    attributes. CheckpointError names one that cannot be copied.
    """
    return capture_with(state, None)[0]


def capture_with(state: Any, kind: type | None) -> tuple[Any, list[Any]]:
    """Return what :func:`capture` does, and the states of the objects of one type, in order."""
    captured = _Capture(find_holders(state, _gives_state), kind)
    return captured.capture(state, "state"), captured.of_kind


def _has_method(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__) and callable(getattr(kind, name))


def _gives_state(obj: Any) -> bool:
    return is_stateful(obj) or isinstance(obj, torch.Generator)


class _Capture:
    """Copies containers, each once, and remembers the copies by the ids of the originals."""

    def __init__(self, holders: set[int], kind: type | None) -> None:
        self._holders, self._kind = holders, kind
        self._made: dict[int, Any] = {}
        self.of_kind: list[Any] = []

    def capture(self, obj: Any, path: str) -> Any:
        if id(obj) in self._made:
            return self._made[id(obj)]
        if is_stateful(obj):
            made = obj.state_dict()
            if type(obj) is self._kind:
                self.of_kind.append(made)
        elif isinstance(obj, torch.Generator):
            made = saved_generator(obj, path)
        elif id(obj) not in self._holders:
            return obj
        elif isinstance(obj, tuple):
            values = [self.capture(value, f"{path}[{key!r}]") for key, value in entries(obj)]
            if id(obj) in self._made:  # the tuple holds itself through a list or a dict
                return self._made[id(obj)]
            made = like(obj, path, values)
        else:
            made = self._made[id(obj)] = like(obj, path)
            for key, value in list(entries(obj)):
                set_entry(made, key, self.capture(value, f"{path}[{key!r}]"))
        self._made[id(obj)] = made
        return made


def like(container: Any, path: str, values: Iterable[Any] = ()) -> Any:
    """Return a new container of the same type and attributes: a tuple of ``values``, or an empty list or dict.

    CheckpointError, naming ``path``, if the type cannot be copied so.
    """
    kind = type(container)
    base = next(base for base in (defaultdict, OrderedDict, dict, list, tuple) if isinstance(container, base))
    try:
        made = tuple.__new__(kind, values) if base is tuple else base.__new__(kind)
        if attributes := attributes_of(container):
            object.__getattribute__(made, "__dict__").update(attributes)
        for name in [*_slot_names(kind), *(["default_factory"] if base is defaultdict else [])]:
            if (value := _attribute(container, name)) is not None:
                object.__setattr__(made, name, value)
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is {kind_of(container)}, which cannot be copied ({error}); put the modules, tensors and "
            "other objects with a state that are in it into a plain dict, list or tuple"
        ) from error
    return made


def attributes_of(obj: Any) -> dict[str, Any]:
    """Return the attributes that are set on an object, bypassing its ``__getattr__``."""
    found: dict[str, Any] | None = _attribute(obj, "__dict__")
    return found or {}


def _attribute(obj: Any, name: str) -> Any:
    """Return an attribute that is set; else None."""
    try:
        return object.__getattribute__(obj, name)
    except AttributeError:
        return None


def set_entry(container: Any, key: Any, value: Any) -> None:
    """Set a key of a dict, or append to a list, by the built-in methods."""
    if isinstance(container, OrderedDict):
        OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.__setitem__(container, key, value)
    else:
        list.append(container, value)
