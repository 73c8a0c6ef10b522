"""Captures a rank's part of a state.

What is no tensor is pickled at once: as one tree, in which placeholders stand for the tensors, and on the first rank
also entry by entry, for torch's own load.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable
from typing import Any

import torch
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.tensor import DTensor

from fastio.checkpoint import placeholders
from fastio.checkpoint.random_state import RandomState
from fastio.checkpoint.saving.picklers import pickle_module_for
from fastio.checkpoint.saving.rank_state import LocalTensor, Path, RankState, Sharding
from fastio.checkpoint.saving.refused_objects import RefusedObjects
from fastio.checkpoint.saving.snapshot import Storage
from fastio.checkpoint.state import ATOMS, capture, entries, find_holders, is_container, like, set_entry
from fastio.engine.unpicklable import name_unpicklable
from fastio.errors import CheckpointError, UnsupportedError, quoted
from fastio.formats.pt.records import pickled
from fastio.formats.pt.writer import lay_out
from fastio.runtime.gc_pause import gc_paused

_PICKLE_PROTOCOL = 2
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def rank_state(state: Any, where: str, refused: RefusedObjects, rank: int) -> RankState:
    """Capture a state. Errors, and warnings of what a restore would refuse, have ``where`` in their messages."""
    with gc_paused(), torch.no_grad():
        captured = capture(state)
        builder = _Builder()
        holders = find_holders(captured, builder.is_replaced_as(state, captured))
        tree = builder.replaced(captured, () if isinstance(captured, dict) else ("state",), holders)
        module = pickle_module_for(captured)
        try:
            records = pickled(tree, _PICKLE_PROTOCOL, pickle_module=module)
            image = _saved(tree, module) if records.storages else bytes(lay_out(records, "tree").literal)
        except Exception as error:
            name_unpicklable(error, tree, "state", where, _PICKLE_PROTOCOL, module)
            raise
        refused.tell(tree, dict(records.small)["data.pkl"], _PICKLE_PROTOCOL, module, where, stacklevel=6)
        objects = {f"{placeholders.OWN}{rank}": _saved(builder.own, module)}
        objects[f"{placeholders.TREE}{rank}"] = image
        if rank == 0:
            objects |= {name: _saved(value, module) for name, value in builder.plain.items()}
    paths = {**{name: (name,) for name in objects}, **builder.paths}
    digest = hashlib.blake2b(image, digest_size=16).digest()
    return RankState(builder.tensors, builder.storages, objects, paths, digest)


def _saved(value: Any, module: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, pickle_module=module, pickle_protocol=_PICKLE_PROTOCOL)
    return stream.getvalue()


class _Builder:
    """Collects the tensors and other entries of a captured tree while it is copied with placeholders."""

    def __init__(self) -> None:
        self.tensors: dict[str, LocalTensor] = {}
        self.storages: list[Storage] = []
        self.own: list[Any] = []
        self.plain: dict[str, Any] = {}
        self.paths: dict[str, Path] = {}
        self._numbers: dict[tuple[str, int], int] = {}  # of storages, by where they are
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one in _made
        self._own_ids: set[int] = set()

    def is_replaced_as(self, state: Any, captured: Any) -> Any:
        """Return a function that says whether an object of the captured tree is replaced by a placeholder."""
        self._find_own(state, captured, set())
        return lambda found: isinstance(found, torch.Tensor) or id(found) in self._own_ids

    def _find_own(self, state: Any, captured: Any, seen: set[int]) -> None:
        if type(state) is RandomState:
            self._own_ids.add(id(captured))
            self._kept.append(captured)
        elif is_container(state) and is_container(captured) and id(state) not in seen:
            seen.add(id(state))
            for (_, entry), (_, made) in zip(entries(state), entries(captured), strict=True):
                if type(entry) not in ATOMS:
                    self._find_own(entry, made, seen)

    def replaced(self, captured: Any, path: Path, holders: set[int]) -> Any:
        """Return a captured tree with placeholders."""
        if id(captured) in self._made:
            return self._made[id(captured)]
        if id(captured) in self._own_ids:
            made: Any = placeholders.of_own(len(self.own))
            self.own.append(captured)
        elif isinstance(captured, torch.Tensor):
            made = self._placed(captured, path)
        elif not is_container(captured):
            self._note(captured, path)
            return captured
        elif id(captured) not in holders:
            self._note_all(captured, path, frozenset())
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

    def _note_all(self, value: Any, path: Path, above: frozenset[int]) -> None:
        """Note the entries of a container without tensors one by one, as DCP flattens it."""
        if id(value) in above or _is_terminal(value, frozenset()):
            self._note(value, path)
            return
        is_dict = isinstance(value, dict)
        for key, entry in entries(value):
            self._note_all(entry, (*path, str(key) if is_dict else key), above | {id(value)})

    def _note(self, value: Any, path: Path) -> None:
        if path and not (isinstance(value, dict) and not value):
            self.plain[self._name(path)] = value

    def _name(self, path: Path) -> str:
        name = ".".join(map(str, path))
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
        plain: Any = tensor if whole is not None or type(tensor) in _PLAIN else tensor.detach()
        local: Any = plain if whole is None else whole.to_local()
        if whole is not None and any(placement.is_partial() for placement in whole.placements):
            raise CheckpointError(f"{_named(path)} holds partial sums: redistribute() it before the save")
        if type(local) not in _PLAIN or local.layout != torch.strided or local.is_quantized or local.is_meta:
            if whole is not None:
                raise UnsupportedError(f"{_named(path)} is a DTensor of {type(local).__name__}: expected plain tensors")
            return tensor  # pickled with the tree
        local = local.resolve_conj().resolve_neg()
        name = self._name(path)
        storage = local.untyped_storage()
        if storage.nbytes() < _end_of(local):
            raise CheckpointError(
                f"the memory of {_named(path)} was freed (untyped_storage().resize_(0)): give it back before the "
                "save, or leave it out"
            )
        of = None
        if whole is not None:
            of = Sharding(whole.device_mesh, whole.placements, whole.shape, whole.stride())
        number = self._number(storage)
        self.tensors[name] = LocalTensor(
            number, local.storage_offset(), local.dtype, tuple(local.shape), local.stride(), of
        )
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        return placeholders.of_tensor(name, tensor.requires_grad and tensor.is_leaf, is_parameter)

    def _number(self, storage: torch.UntypedStorage) -> int:
        """The number of a storage; of several that begin at one address, as over an array, the largest one counts."""
        key = (str(storage.device), storage.data_ptr())
        number = self._numbers.get(key) if storage.nbytes() else None
        if number is None:
            number = self._numbers[key] = len(self.storages)
            self.storages.append((f"data/{number}", storage, storage.nbytes()))
        elif self.storages[number][2] < storage.nbytes():
            self.storages[number] = (f"data/{number}", storage, storage.nbytes())
        return number


def _end_of(tensor: Any) -> int:
    """The bytes of its storage up to the last one that a tensor has."""
    count = tensor.numel()
    if count and not tensor.is_contiguous():
        count = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    end: int = (tensor.storage_offset() + count) * tensor.element_size()
    return end if count else 0


def _is_terminal(value: Any, above: frozenset[int]) -> bool:
    """Whether DCP stores a value without tensors as one object: anything but dicts, and lists that reach one."""
    if isinstance(value, dict):
        return False
    if not isinstance(value, list) or id(value) in above:
        return True
    return all(_is_terminal(entry, above | {id(value)}) for _, entry in entries(value) if type(entry) not in ATOMS)


def _named(path: Iterable[Any]) -> str:
    return "state" + "".join(f"[{quoted(key)}]" for key in path)
