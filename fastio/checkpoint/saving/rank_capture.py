"""Captures a rank's part of a state.

What is no tensor is pickled at once: as one tree, in which placeholders stand for the tensors, and on the first rank
also entry by entry, for torch's own load.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor

from fastio.checkpoint import placeholders
from fastio.checkpoint.random_state import RandomState
from fastio.checkpoint.saving.known_tree import PLAIN, KnownTensor, KnownTree, known_tree, traits_of
from fastio.checkpoint.saving.picklers import pickle_module_for
from fastio.checkpoint.saving.plain_entries import Path, name_of, plain_entries
from fastio.checkpoint.saving.rank_state import LocalTensor, RankState, Sharding
from fastio.checkpoint.saving.rank_storages import RankStorages
from fastio.checkpoint.saving.refused_objects import RefusedObjects
from fastio.checkpoint.state import capture_with, entries, find_holders, like, set_entry
from fastio.engine.unpicklable import name_unpicklable
from fastio.errors import CheckpointError, UnsupportedError, quoted
from fastio.formats.pt.records import pickled
from fastio.formats.pt.writer import lay_out
from fastio.runtime.gc_pause import gc_paused

_PICKLE_PROTOCOL = 2


class RankCapture:
    """Captures a rank's part of one state after the other; those with the structure of the one before in less time."""

    def __init__(self, rank: int) -> None:
        self._rank, self._refused = rank, RefusedObjects()
        self._known: _Known | None = None

    def capture(self, state: Any, where: str) -> RankState:
        """Capture a state. Errors, and warnings of what a restore would refuse, have ``where`` in their messages."""
        known, self._known = self._known, None  # an error leaves a tree that was taken over in part
        with gc_paused(), torch.no_grad():
            captured, own = capture_with(state, RandomState)
            updated = None if known is None else self._updated(known, captured, own, where)
            made, self._known = updated or self._made(captured, own, where)
        return made

    def _made(self, captured: Any, own: list[Any], where: str) -> tuple[RankState, _Known]:
        builder = _Builder(own)
        holders = find_holders(captured, builder.is_replaced)
        path = () if isinstance(captured, dict) else ("state",)
        tree = builder.replaced(captured, path, holders)
        module, image = self._image(captured, tree, where)
        objects = {f"{placeholders.OWN}{self._rank}": _saved(builder.own, module)}
        objects[f"{placeholders.TREE}{self._rank}"] = image
        if self._rank == 0:
            objects |= {name: _saved(value, module) for name, value in builder.plain.items()}
        paths = {**{name: (name,) for name in objects}, **builder.paths}
        made = RankState(builder.tensors, builder.storages.all, objects, paths, _digest(image))
        structure = known_tree(captured, tree, path, builder.known, own, holders)
        return made, _Known(made._replace(storages=()), tree, structure)

    def _updated(self, known: _Known, captured: Any, own: list[Any], where: str) -> tuple[RankState, _Known] | None:
        """A captured state, and what is known of it, if it has the structure of the one before."""
        if known.structure is None or (update := known.structure.update(captured, own)) is None:
            return None
        state = known.state
        if update.is_changed or own:
            module, image = self._image(captured, known.tree, where)
            objects = dict(state.objects)
            objects[f"{placeholders.TREE}{self._rank}"] = image
            if own:
                objects[f"{placeholders.OWN}{self._rank}"] = _saved(own, module)
            if self._rank == 0:
                objects |= {name: _saved(value, module) for name, value in update.plain.items()}
            state = state._replace(objects=objects, tree=_digest(image))
        known.structure.forget_values()
        return state._replace(storages=update.storages.all), known._replace(state=state)

    def _image(self, captured: Any, tree: Any, where: str) -> tuple[Any, bytearray]:
        """The pickle module for a state, and a file of its tree with placeholders."""
        module = pickle_module_for(captured)
        try:
            records = pickled(tree, _PICKLE_PROTOCOL, pickle_module=module)
            image = _saved(tree, module) if records.storages else bytearray(lay_out(records, "tree").literal)
        except Exception as error:
            name_unpicklable(error, tree, "state", where, _PICKLE_PROTOCOL, module)
            raise
        self._refused.tell(tree, dict(records.small)["data.pkl"], _PICKLE_PROTOCOL, module, where, stacklevel=8)
        return module, image


class _Known(NamedTuple):
    """What was made of a captured state, without its storages."""

    state: RankState
    tree: Any
    structure: KnownTree | None


def _digest(image: bytearray) -> bytes:
    return hashlib.blake2b(image, digest_size=16).digest()


def _saved(value: Any, module: Any) -> bytearray:
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=module, pickle_protocol=_PICKLE_PROTOCOL)
    return bytearray(stream.getbuffer())


class _Builder:
    """Collects the tensors and other entries of a captured tree while it is copied with placeholders."""

    def __init__(self, own: list[Any]) -> None:
        self.tensors: dict[str, LocalTensor] = {}
        self.storages = RankStorages()
        self.known: dict[int, KnownTensor] = {}  # by the ids of tensors
        self.own: list[Any] = []
        self.plain: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one in _made
        self._own_ids = {id(one) for one in own}

    def is_replaced(self, found: Any) -> bool:
        """Whether an object of the captured tree is replaced by a placeholder."""
        return isinstance(found, torch.Tensor) or id(found) in self._own_ids

    def replaced(self, captured: Any, path: Path, holders: set[int]) -> Any:
        """Return a captured tree with placeholders."""
        if id(captured) in self._made:
            return self._made[id(captured)]
        if id(captured) in self._own_ids:
            made: Any = placeholders.of_own(len(self.own))
            self.own.append(captured)
        elif isinstance(captured, torch.Tensor):
            made = self._placed(captured, path)
        elif id(captured) not in holders:
            for place, value in plain_entries(captured, path):
                self.plain[self._name(place)] = value
            return captured
        elif isinstance(captured, tuple):
            parts = [self.replaced(value, (*path, key), holders) for key, value in entries(captured)]
            made = like(captured, _named(path), parts)
        else:
            made = self._made[id(captured)] = like(captured, _named(path))
            is_dict = isinstance(captured, dict)
            for key, value in list(entries(captured)):
                set_entry(made, key, self.replaced(value, (*path, str(key) if is_dict else key), holders))
        self._made[id(captured)] = made
        self._kept.append(captured)
        return made

    def _name(self, path: Path) -> str:
        name = name_of(path)
        if name.startswith(placeholders.RESERVED):
            raise CheckpointError(f"{_named(path)}: names that begin with {placeholders.RESERVED} are fastio's own")
        if name in self.paths:
            raise CheckpointError(
                f"{_named(path)} and {_named(self.paths[name])} are both called {quoted(name)} in a checkpoint of "
                "several ranks: rename one of them"
            )
        self.paths[name] = path
        return name

    def _placed(self, tensor: torch.Tensor, path: Path) -> Any:
        if isinstance(tensor, ShardedTensor):
            raise UnsupportedError(
                f"{_named(path)} is a ShardedTensor (of FSDP's first version): use fully_shard, which has DTensors"
            )
        whole: Any = tensor if isinstance(tensor, DTensor) else None
        plain: Any = tensor if whole is not None or type(tensor) in PLAIN else tensor.detach()
        local: Any = plain if whole is None else whole.to_local()
        if whole is not None and any(placement.is_partial() for placement in whole.placements):
            raise CheckpointError(f"{_named(path)} holds partial sums: redistribute() it before the save")
        if type(local) not in PLAIN or local.layout != torch.strided or local.is_quantized or local.is_meta:
            if whole is not None:
                raise UnsupportedError(f"{_named(path)} is a DTensor of {type(local).__name__}: expected plain tensors")
            return tensor  # pickled with the tree
        traits = traits_of(tensor, local)
        local = local.resolve_conj().resolve_neg()
        name = self._name(path)
        storage = local.untyped_storage()
        end = _end_of(local)
        if storage.nbytes() < end:
            raise CheckpointError(
                f"the memory of {_named(path)} was freed (untyped_storage().resize_(0)): give it back before the "
                "save, or leave it out"
            )
        of = None
        if whole is not None:
            of = Sharding(whole.device_mesh, whole.placements, whole.shape, whole.stride())
        number = self.storages.add(storage)
        if traits is not None:
            self.known[id(tensor)] = KnownTensor(tensor, traits, number, end)
        self.tensors[name] = LocalTensor(
            number, local.storage_offset(), local.dtype, tuple(local.shape), local.stride(), of
        )
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return placeholders.of_tensor(name, tensor.requires_grad and tensor.is_leaf, is_parameter)


def _end_of(tensor: Any) -> int:
    """The bytes of its storage up to the last one that a tensor has."""
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end: int = (tensor.storage_offset() + count) * tensor.element_size()
    return end if count else 0


def _named(path: Iterable[Any]) -> str:
    return "state" + "".join(f"[{quoted(key)}]" for key in path)
