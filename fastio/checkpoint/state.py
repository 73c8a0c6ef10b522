"""What a caller gives to be saved, as torch can pickle it: whatever has a state gives it."""

from __future__ import annotations

import copyreg
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fastio.errors import CheckpointError

_slot_names: Callable[[type], list[str]] = copyreg._slotnames  # type: ignore[attr-defined]

ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size})
"""Types whose values hold nothing else, and are most of what a state has."""


def is_stateful(thing: Any) -> bool:
    """Whether it is a module, an optimizer, a scheduler, a data loader, ...: what gives its state and takes it back.

    Its class says so. An object may answer to any name, and even change when it is asked for one.
    """
    kind = type(thing)
    if kind in ATOMS or isinstance(thing, (type, torch.Tensor)):
        return False
    return _has_method(kind, "state_dict") and _has_method(kind, "load_state_dict")


def is_container(thing: Any) -> bool:
    """Whether it is one of the containers whose entries are saved and restored one by one; else it is pickled whole."""
    return isinstance(thing, (dict, list, tuple)) and type(thing) is not torch.Size


def entries(container: Any) -> Iterable[tuple[Any, Any]]:
    """The (key or index, value) pairs of a container, by the methods of Python's own, whatever its class defines."""
    if isinstance(container, OrderedDict):
        return OrderedDict.items(container)
    if isinstance(container, dict):
        return dict.items(container)
    return enumerate(list.__iter__(container) if isinstance(container, list) else tuple.__iter__(container))


def holders(tree: Any, is_wanted: Callable[[Any], bool]) -> set[int]:
    """The ids of the containers in a tree from which something wanted is reached. A tree may have cycles."""
    if is_wanted(tree) or not is_container(tree):
        return set()
    within: dict[int, list[int]] = {id(tree): []}  # for each container, those that it is an entry of
    found: list[int] = []
    left = [tree]
    while left:
        here = left.pop()
        values = [value for _, value in entries(here)]
        if ATOMS.issuperset(map(type, values)):
            continue
        for value in values:
            if is_wanted(value):
                found.append(id(here))
            elif is_container(value):
                if id(value) not in within:
                    within[id(value)] = []
                    left.append(value)
                within[id(value)].append(id(here))
    holding: set[int] = set()
    while found:
        one = found.pop()
        if one not in holding:
            holding.add(one)
            found.extend(within[one])
    return holding


def captured(state: Any) -> Any:
    """The same tree, with states in the place of what has one. No tensor is copied, and nothing of ``state`` changes.

    What holds nothing that has a state is the very object that was given. Other containers are copied, each once, with
    their type and attributes. CheckpointError names one that cannot be.
    """
    return _Capture(holders(state, _gives_state)).of(state, "state")


def _has_method(kind: type, name: str) -> bool:
    return any(name in vars(base) for base in kind.__mro__) and callable(getattr(kind, name))


def _gives_state(thing: Any) -> bool:
    return is_stateful(thing) or isinstance(thing, torch.Generator)


class _Capture:
    """The copies that are made, by the ids of what they are of."""

    def __init__(self, holding: set[int]) -> None:
        self._holding = holding
        self._made: dict[int, Any] = {}

    def of(self, thing: Any, path: str) -> Any:
        if id(thing) in self._made:
            return self._made[id(thing)]
        if is_stateful(thing):
            made = thing.state_dict()
        elif isinstance(thing, torch.Generator):
            made = thing.get_state()
        elif id(thing) not in self._holding:
            return thing
        elif isinstance(thing, tuple):
            values = [self.of(value, f"{path}[{key!r}]") for key, value in entries(thing)]
            if id(thing) in self._made:  # it holds itself, by way of a list or a dict
                return self._made[id(thing)]
            made = like(thing, path, values)
        else:
            made = self._made[id(thing)] = like(thing, path)
            for key, value in list(entries(thing)):
                set_entry(made, key, self.of(value, f"{path}[{key!r}]"))
        self._made[id(thing)] = made
        return made


def like(container: Any, path: str, values: Iterable[Any] = ()) -> Any:
    """A new container of the same type and attributes; a tuple of ``values``, or an empty list or dict.

    CheckpointError, naming ``path``, if that type cannot be made so.
    """
    kind = type(container)
    base = next(one for one in (defaultdict, OrderedDict, dict, list, tuple) if isinstance(container, one))
    try:
        made = tuple.__new__(kind, values) if base is tuple else base.__new__(kind)
        if attributes := attributes_of(container):
            object.__getattribute__(made, "__dict__").update(attributes)
        for name in [*_slot_names(kind), *(["default_factory"] if base is defaultdict else [])]:
            if (value := _attribute(container, name)) is not None:
                object.__setattr__(made, name, value)
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} is a {kind.__qualname__}, which cannot be made anew ({error}); put the modules, tensors and "
            "other things with a state that are in it into a plain dict, list or tuple"
        ) from error
    return made


def attributes_of(thing: Any) -> dict[str, Any]:
    """The attributes that are set on an object, whatever it answers to other names."""
    found: dict[str, Any] | None = _attribute(thing, "__dict__")
    return found or {}


def _attribute(thing: Any, name: str) -> Any:
    """An attribute that is there; else None."""
    try:
        return object.__getattribute__(thing, name)
    except AttributeError:
        return None


def set_entry(container: Any, key: Any, value: Any) -> None:
    """Put an entry at a key of a dict, or at the end of a list, by the methods of Python's own."""
    if isinstance(container, OrderedDict):
        OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.__setitem__(container, key, value)
    else:
        list.append(container, value)
