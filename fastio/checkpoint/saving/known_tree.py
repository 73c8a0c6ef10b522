"""Takes the values of a captured state over into the tree with placeholders of the step before.

The states of most steps differ in nothing but values. To make all about a tensor anew takes 12 us, to see that it is
described as before 2 us; training is blocked meanwhile. What is kept holds no memory of a state.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch.distributed.tensor import DTensor

from fastio.checkpoint.saving.plain_entries import Path, name_of, plain_entries
from fastio.checkpoint.saving.rank_storages import RankStorages
from fastio.checkpoint.state import ATOMS, attributes_of, entries, find_holders, is_container

PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The types of tensors that are saved by ranks, and of the parts of DTensors."""
_LONG = 1024  # texts that are longer are not kept
_HOLDERS = (dict, OrderedDict, list, tuple)


class Differs(Exception):
    """A state has another structure than the one before."""


class KnownTensor:
    """What must be the same of a tensor: its ``traits``, the number of its storage, and the bytes that it needs."""

    __slots__ = ("_end", "_is_whole", "_kind", "_number", "_traits")

    def __init__(self, tensor: torch.Tensor, traits: tuple[Any, ...], number: int, end: int) -> None:
        self._kind, self._is_whole = type(tensor), not isinstance(tensor, DTensor)
        self._traits, self._number, self._end = traits, number, end

    def require(self, tensor: Any, storages: RankStorages) -> None:
        """Add the storage of a tensor that is the same. Differs if it is another one."""
        kind: type = type(tensor)  # else mypy takes it for a plain tensor
        if kind is not self._kind:
            raise Differs
        local = tensor if self._is_whole else tensor.to_local()
        if traits_of(tensor, local) != self._traits:
            raise Differs
        storage = local.untyped_storage()
        if storage.nbytes() < self._end or storages.add(storage) != self._number:
            raise Differs


def traits_of(tensor: Any, local: Any) -> tuple[Any, ...] | None:
    """Return what describes a tensor and the part of it that is here, if that is saved by itself and as it is."""
    if type(local) not in PLAIN or local.layout != torch.strided or local.is_meta or local.is_conj() or local.is_neg():
        return None
    own = local.dtype, local.shape, local.stride(), local.storage_offset(), tensor.requires_grad and tensor.is_leaf
    if tensor is local:
        return own
    return own, type(local), tensor.device_mesh, tensor.placements, tensor.shape, tensor.stride()


class Update:
    """What a captured state has: its storages, the entries without tensors that may have changed, by name.

    ``is_changed``: whether the tree may be another one than before.
    """

    def __init__(self, own: Sequence[Any]) -> None:
        self.storages = RankStorages()
        self.plain: dict[str, Any] = {}
        self.is_changed = False
        self.own = own
        self.own_seen = 0
        self.numbers: dict[int, int] = {}  # of tensors, by their ids
        self.holders: set[int] = set()


class _Part(Protocol):
    """An entry of a container."""

    def take(self, value: Any, update: Update) -> bool:
        """Take another value over; returns whether it must be put in the tree. Differs if it has another structure."""


class _TensorPart:
    def __init__(self, known: KnownTensor, number: int, is_first: bool) -> None:
        self._known, self._number, self._is_first = known, number, is_first

    def take(self, value: Any, update: Update) -> bool:
        if update.numbers.setdefault(id(value), len(update.numbers)) != self._number:
            raise Differs
        if self._is_first:
            self._known.require(value, update.storages)
        return False


class _OwnPart:
    """A rank's own object, each in one place."""

    def take(self, value: Any, update: Update) -> bool:
        if update.own_seen >= len(update.own) or value is not update.own[update.own_seen]:
            raise Differs
        update.own_seen += 1
        return False


class _PlainPart:
    """What has neither tensors nor own objects."""

    def __init__(self, value: Any, path: Path) -> None:
        self._path = path
        self.is_atom = _is_atom(value)
        self._value = value if self.is_atom else None
        self._places = [place for place, _ in plain_entries(value, path)]

    def take(self, value: Any, update: Update) -> bool:
        if _is_atom(value) != self.is_atom or isinstance(value, torch.Tensor):
            raise Differs
        if self.is_atom and (value is self._value or _is_equal(value, self._value)):
            return False
        own = {id(one) for one in update.own}
        if is_container(value) and find_holders(value, lambda one: isinstance(one, torch.Tensor) or id(one) in own):
            raise Differs
        found = plain_entries(value, self._path)
        if [place for place, _ in found] != self._places:
            raise Differs
        if self.is_atom:
            self._value = value
        update.plain |= {name_of(place): entry for place, entry in found}
        update.is_changed = True
        return True


class _Holder:
    """A container that was copied, and its entries."""

    def __init__(self, captured: Any, made: Any, parts: Sequence[_Part]) -> None:
        self._kind, self._made, self.parts = type(captured), made, parts
        self._keys = [key for key, _ in entries(captured)]
        self._has_attributes = bool(attributes_of(captured))

    def take(self, value: Any, update: Update) -> bool:
        if type(value) is not self._kind or len(value) != len(self.parts) or id(value) in update.holders:
            raise Differs
        update.holders.add(id(value))
        for (key, entry), known, part in zip(entries(value), self._keys, self.parts, strict=True):
            if key is not known and (type(key) is not type(known) or key != known):
                raise Differs
            if part.take(entry, update):
                self._put(key, entry)
        attributes = attributes_of(value) if self._kind is OrderedDict else {}
        if attributes or self._has_attributes:  # as of a module's state_dict: they may have changed inside
            vars(self._made).update(attributes)
            self._has_attributes, update.is_changed = bool(attributes), True
        return False

    def forget_values(self) -> None:
        """Remove all from the tree that may hold much: it is put there again."""
        if self._has_attributes:
            vars(self._made).clear()
        for key, part in zip(self._keys, self.parts, strict=True):
            if isinstance(part, _Holder):
                part.forget_values()
            elif isinstance(part, _PlainPart) and not part.is_atom:
                self._put(key, None)

    def _put(self, key: Any, value: Any) -> None:
        if self._kind is tuple:
            raise Differs
        self._made[key] = value


class KnownTree:
    """A captured state, as a tree of what must be the same in the next one."""

    def __init__(self, root: _Holder, own: int) -> None:
        self._root, self._own = root, own

    def update(self, captured: Any, own: Sequence[Any]) -> Update | None:
        """Take the values of another captured state over into the tree; ``own`` are its rank's own objects, in order.

        None if it has another structure: the tree, parts of which may have changed, is of no use then.
        """
        update = Update(own)
        try:
            self._root.take(captured, update)
        except Differs:
            return None
        return update if update.own_seen == self._own == len(own) else None

    def forget_values(self) -> None:
        """Remove from the tree what is not needed to update it."""
        self._root.forget_values()


def known_tree(
    captured: Any, made: Any, path: Path, tensors: Mapping[int, KnownTensor], own: Sequence[Any], holders: set[int]
) -> KnownTree | None:
    """Return what is known of a captured state, of which ``made`` was made; ``tensors`` by their ids.

    None if it has something that is not taken over, as containers of other types, or in two places.
    """
    builder = _Builder(tensors, own, holders)
    root = builder.part(captured, made, path)
    if not isinstance(root, _Holder) or builder.is_odd or builder.own_seen != len(own):
        return None
    known = KnownTree(root, len(own))
    known.forget_values()
    return known


class _Builder:
    def __init__(self, tensors: Mapping[int, KnownTensor], own: Sequence[Any], holders: set[int]) -> None:
        self._tensors, self._holders = tensors, holders
        self._own_ids = {id(one) for one in own}
        self._numbers: dict[int, int] = {}
        self._seen: set[int] = set()
        self.own_seen = 0
        self.is_odd = False

    def part(self, captured: Any, made: Any, path: Path) -> _Part:
        if id(captured) in self._own_ids:
            self.own_seen += 1
            return _OwnPart()
        if isinstance(captured, torch.Tensor):
            return self._tensor(captured)
        if id(captured) not in self._holders:
            return _PlainPart(captured, path)
        if id(captured) in self._seen or type(captured) not in _HOLDERS:
            self.is_odd = True
            return _OwnPart()
        self._seen.add(id(captured))
        is_dict, is_tuple = isinstance(captured, dict), isinstance(captured, tuple)
        parts = [
            self.part(entry, placed, (*path, str(key) if is_dict else key))
            for (key, entry), (_, placed) in zip(entries(captured), entries(made), strict=True)
        ]
        self.is_odd |= is_tuple and any(isinstance(part, _PlainPart) and not part.is_atom for part in parts)
        return _Holder(captured, made, parts)

    def _tensor(self, tensor: torch.Tensor) -> _Part:
        known = self._tensors.get(id(tensor))
        if known is None:
            self.is_odd = True
            return _OwnPart()
        is_first = id(tensor) not in self._numbers
        return _TensorPart(known, self._numbers.setdefault(id(tensor), len(self._numbers)), is_first)


def _is_atom(value: Any) -> bool:
    """Whether a value is kept to be compared with the next one."""
    return type(value) in ATOMS and not (isinstance(value, (str, bytes)) and len(value) > _LONG)


def _is_equal(value: Any, other: Any) -> bool:
    """Whether two atoms are pickled to the same value; not -0.0 and 0.0, which are equal."""
    return type(value) is type(other) and type(value) is not complex and bool(value) and bool(value == other)
