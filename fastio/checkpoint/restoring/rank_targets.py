"""Puts tensors in the place of what stands for them in a saved tree: live ones where they fit, else new ones.

A live DTensor, or the parameter that a state of an optimizer belongs to, says which part of a tensor is this rank's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from fastio.checkpoint import placeholders
from fastio.checkpoint.restoring.restore_targets import has_plain_memory, is_restored_in_place
from fastio.checkpoint.state import ATOMS, entries, find_holders, is_container, is_stateful, like
from fastio.distributed.stored_items import contiguous
from fastio.errors import CheckpointError


class Place(NamedTuple):
    """Where in the live tree a saved tensor belongs.

    ``live`` is what is there now, of the object ``owner`` with a state, in which ``keys`` lead to it.
    """

    live: Any
    owner: Any
    keys: tuple[Any, ...]
    path: str


class Leaves(Protocol):
    """What stands for tensors in a saved tree."""

    def is_leaf(self, saved: Any) -> bool:
        """Return whether an object of the tree is replaced."""

    def replaced(self, saved: Any, place: Place) -> Any:
        """Return what takes its place."""


class StoredTensors:
    """Placeholders of a step of ranks; ``wanted`` collects the tensors to be filled, by their names in the step.

    ``describe`` returns the shape and the dtype of a stored tensor, ``own`` are this rank's own objects. With
    ``keeps_own`` live ones stay as they are.
    """

    def __init__(
        self,
        describe: Callable[[str], tuple[torch.Size, torch.dtype]],
        own: list[Any],
        keeps_own: bool,
        device: torch.device,
    ) -> None:
        self._describe, self._own, self._keeps_own, self._device = describe, own, keeps_own, device
        self.wanted: dict[str, torch.Tensor] = {}

    def is_leaf(self, saved: Any) -> bool:
        """Return whether an object of the tree is replaced."""
        return placeholders.is_placeholder(saved)

    def replaced(self, saved: Any, place: Place) -> Any:
        """Return what takes its place."""
        number = placeholders.own_number(saved)
        if number is not None:
            return place.live if self._keeps_own and place.live is not None else self._own[number]
        name = placeholders.tensor_name(saved) or ""
        shape, dtype = self._describe(name)
        target = _as_live(place, shape, dtype)
        if target is None:
            target = torch.empty(shape, dtype=dtype, device=self._device)
            if saved["is_parameter"]:
                target = torch.nn.Parameter(target, requires_grad=saved["requires_grad"])
            elif saved["requires_grad"]:
                target.requires_grad_(True)
        self.wanted[name] = target
        return target


class WholeTensors:
    """Whole tensors of a step of one process, of which shards are taken where the live tensors are shards."""

    def is_leaf(self, saved: Any) -> bool:
        """Return whether an object of the tree is replaced."""
        return isinstance(saved, torch.Tensor)

    def replaced(self, saved: torch.Tensor, place: Place) -> Any:
        """Return what takes its place."""
        live = place.live
        if isinstance(saved, DTensor):
            if saved.device_mesh.size() > 1 or (isinstance(live, DTensor) and live.device_mesh.size() == 1):
                return saved  # of one process of several, which pickled its part; or as the live one is
            saved = saved.to_local()
        target = _as_live(place, saved.shape, saved.dtype)
        if not isinstance(target, DTensor):
            return saved
        part = _part(target, target.shape, target.dtype)
        sizes, offsets = _bounds(target, target.shape)
        for dim, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
            saved = saved.narrow(dim, min(offset, saved.shape[dim]), size)
        part.to_local().copy_(saved)
        return part


def fitted(live: Any, captured: Any, saved: Any, leaves: Leaves) -> Any:
    """Return a saved tree with tensors in the place of its leaves; only those that a restore into ``live`` needs.

    ``captured`` is the live tree with the states of its objects; both are None for a restore of all. The saved tree's
    dicts and lists are changed. CheckpointError, naming the place, for a live shard of another shape.
    """
    return _Fitter(find_holders(live, is_restored_in_place), leaves).visit(live, captured, saved, "state")


class _Fitter:
    def __init__(self, holders: set[int], leaves: Leaves) -> None:
        self._holders, self._leaves = holders, leaves
        self._done: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no other object gets the id of one in _done

    def visit(self, live: Any, captured: Any, saved: Any, path: str) -> Any:
        """Fill what is restored into a live object."""
        is_holder = is_container(live) and (id(live) in self._holders or (path == "state" and isinstance(live, dict)))
        if not is_holder or is_stateful(live) or not is_container(saved):
            owner = live if is_stateful(live) else None
            return self._fill(saved, Place(captured if is_restored_in_place(live) else None, owner, (), path))
        if id(saved) in self._done:
            return self._done[id(saved)]
        there, values = dict(entries(saved)), dict(entries(captured))
        made = {
            key: self.visit(entry, values[key], there[key], f"{path}[{key!r}]")
            for key, entry in entries(live)
            if key in there
        }
        return self._made(saved, there | made, path)

    def _fill(self, saved: Any, place: Place) -> Any:
        """Fill all of a saved object."""
        if type(saved) in ATOMS:
            return saved
        if id(saved) in self._done:
            return self._done[id(saved)]
        if self._leaves.is_leaf(saved):
            self._kept.append(saved)
            made = self._done[id(saved)] = self._leaves.replaced(saved, place)
            return made
        if not is_container(saved):
            return saved
        if not isinstance(saved, tuple):
            self._done[id(saved)] = saved
        values = dict(entries(place.live)) if is_container(place.live) else {}
        there = dict(entries(saved))
        made = {}
        for key, value in there.items():
            below = Place(values.get(key), place.owner, (*place.keys, key), f"{place.path}[{key!r}]")
            made[key] = self._fill(value, below)
        return self._made(saved, made, place.path)

    def _made(self, saved: Any, values: dict[Any, Any], path: str) -> Any:
        """Put values into a saved container; return it, or another one if it is a tuple."""
        self._kept.append(saved)
        if isinstance(saved, tuple):
            same = all(values[key] is entry for key, entry in entries(saved))
            made = saved if same else like(saved, path, [values[key] for key, _ in entries(saved)])
        else:
            made = saved
            base: Any = dict if isinstance(saved, dict) else list
            for key, entry in list(entries(saved)):
                if values[key] is not entry:
                    base.__setitem__(saved, key, values[key])
        self._done[id(saved)] = made
        return made


def _as_live(place: Place, shape: torch.Size, dtype: torch.dtype) -> torch.Tensor | None:
    """Return a tensor laid out as the live one, which it is if it fits; None if there is none to take after."""
    live = place.live
    if isinstance(live, DTensor):
        if live.shape != shape:
            raise CheckpointError(
                f"{place.path} is a DTensor of shape {list(live.shape)}, but one of {list(shape)} was saved; make the "
                "model as it was when it was saved"
            )
        return live if live.dtype == dtype else _part(live, shape, dtype)
    if isinstance(live, torch.Tensor):
        fits = has_plain_memory(live) and not live.is_meta and (live.shape, live.dtype) == (shape, dtype)
        return live if fits and not _is_expanded(live) else None
    parameter = _parameter(place)
    if not isinstance(parameter, DTensor) or shape.numel() <= 1:
        return None
    if parameter.shape != shape:
        raise CheckpointError(
            f"{place.path} of shape {list(shape)} belongs to a DTensor of {list(parameter.shape)}, and the optimizer "
            "has no state yet that says which part is this rank's: do one step of it before the restore"
        )
    return _part(parameter, shape, dtype)


def _is_expanded(tensor: torch.Tensor) -> bool:
    return any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _parameter(place: Place) -> Any:
    """The parameter that an entry of an optimizer's state belongs to."""
    if not isinstance(place.owner, torch.optim.Optimizer) or place.keys[:1] != ("state",) or len(place.keys) < 2:
        return None
    parameters = [parameter for group in place.owner.param_groups for parameter in group["params"]]
    number = place.keys[1]
    return parameters[number] if type(number) is int and number < len(parameters) else None


def _part(model: DTensor, shape: torch.Size, dtype: torch.dtype) -> DTensor:
    """Return a new DTensor that is laid out as another one."""
    sizes, _ = _bounds(model, shape)
    local = torch.empty(sizes, dtype=dtype, device=model.to_local().device)
    mesh, placements = model.device_mesh, model.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=contiguous(tuple(shape)))


def _bounds(model: DTensor, shape: torch.Size) -> tuple[Any, Any]:
    """The shape of this rank's part of a tensor, and the index at which it begins."""
    bounds: tuple[Any, Any] = compute_local_shape_and_global_offset(shape, model.device_mesh, model.placements)
    return bounds


def holds_shards(captured: Any) -> bool:
    """Return whether a tree holds DTensors."""
    return bool(find_holders([captured], lambda found: isinstance(found, DTensor)))
