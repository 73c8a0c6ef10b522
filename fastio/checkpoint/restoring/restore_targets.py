"""Decides which records of a step are read straight into live tensors, and which need not be read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from fastio import devices
from fastio.checkpoint.restoring.load_state_dicts import changes_itself_alone, loads_as_torch_does, tensors_of
from fastio.checkpoint.restoring.outline import Outline, PickledTensor, records_of
from fastio.checkpoint.state import entries, find_holders, is_container, is_stateful

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Targets(NamedTuple):
    """``filled`` maps records to the live tensors that they are read into; ``needed`` are all records to read."""

    filled: Mapping[str, torch.Tensor]
    needed: frozenset[str]


def is_restored_in_place(obj: Any) -> bool:
    """Return whether an object is restored in place, not replaced: a tensor, a generator, or one with a state."""
    return is_stateful(obj) or isinstance(obj, (torch.Tensor, torch.Generator))


def takes_values(tensor: torch.Tensor) -> bool:
    """Return whether another tensor's values can be copied to it; nested and lazy tensors have no shape for that."""
    return not (tensor.is_nested or is_lazy(tensor))


def has_plain_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is dense, of torch's own classes."""
    is_plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
    return is_plain and not (tensor.is_quantized or tensor.is_nested)


def find_targets(live: Any, outline: Outline, sizes: Mapping[str, int]) -> Targets:
    """Return the targets of a step with this outline in a live tree; ``sizes`` are the bytes of its records.

    A record is read into a live tensor only if their bytes correspond exactly, no other live tensor has that memory, no
    other saved tensor has that record, and no code of the user's program runs before the tensor would be copied, for
    such code could see the difference. Records that code named by the pickle may read are always needed.
    """
    finder = _TargetFinder(live, outline, sizes)
    finder.visit(live, outline.tree, True)
    return Targets(finder.filled, frozenset(finder.needed | outline.opaque) & sizes.keys())


class _TargetFinder:
    def __init__(self, live: Any, outline: Outline, sizes: Mapping[str, int]) -> None:
        self._outline, self._sizes = outline, sizes
        self._holders = find_holders(live, is_restored_in_place)
        self._users = Counter(map(_memory, _tensors(live, self._holders)))
        self._seen: set[tuple[int, int]] = set()
        self._is_exact = True  # no code of the user's program runs up to this point of the tree
        self.filled: dict[str, torch.Tensor] = {}
        self.needed: set[str] = set()

    def visit(self, live: Any, pickled: Any, is_top: bool = False) -> None:
        if is_stateful(live):
            self.needed |= records_of(pickled)
            if loads_as_torch_does(live):
                for keys, tensor in tensors_of(live):
                    self._offer(tensor, _entry(pickled, keys))
            self._is_exact = self._is_exact and changes_itself_alone(live)
        elif isinstance(live, torch.Tensor):
            self.needed |= records_of(pickled)
            self._offer(live, pickled)
        elif is_container(live) and (id(live) in self._holders or (is_top and isinstance(live, dict))):
            self._visit_entries(live, pickled)
        else:
            self.needed |= records_of(pickled)

    def _visit_entries(self, live: Any, pickled: Any) -> None:
        """Visit the entries of a container. Of a dict that was saved as a dict, only the live keys are needed."""
        if (id(live), id(pickled)) in self._seen:
            return
        self._seen.add((id(live), id(pickled)))
        if isinstance(live, dict) and isinstance(pickled, dict):
            self.needed |= records_of(list(getattr(pickled, "__dict__", {}).values()))
        else:
            self.needed |= records_of(pickled)
        for key, value in entries(live):
            self.visit(value, _entry(pickled, (key,)))

    def _offer(self, live: torch.Tensor, pickled: Any) -> None:
        if not self._is_exact or type(pickled) is not PickledTensor or pickled.record not in self._outline.plain:
            return
        if self._users[_memory(live)] == 1 and _fits(live, pickled, self._sizes.get(pickled.record, 0)):
            self.filled[pickled.record] = live


def _entry(pickled: Any, keys: tuple[Any, ...]) -> Any:
    """Return the part of the outline at these keys; None if there is none, or if it is opaque."""
    for key in keys:
        if isinstance(pickled, dict):
            pickled = pickled.get(key)
        elif type(pickled) in (list, tuple) and type(key) is int and key < len(pickled):
            pickled = pickled[key]
        else:
            return None
    return pickled


def _tensors(live: Any, holders: set[int]) -> Iterator[torch.Tensor]:
    """Yield the tensors of a live tree that are written to, once for each reference."""
    seen: set[int] = set()
    left = [live]
    while left:
        obj = left.pop()
        if isinstance(obj, torch.Tensor):
            yield obj
        elif is_stateful(obj):
            yield from (tensor for _, tensor in tensors_of(obj))
        elif is_container(obj) and id(obj) in holders and id(obj) not in seen:
            seen.add(id(obj))
            left.extend(value for _, value in entries(obj))


def _memory(tensor: torch.Tensor) -> int:
    """Return the address of a plain tensor's storage; 0 for other tensors."""
    return tensor.untyped_storage().data_ptr() if has_plain_memory(tensor) else 0


def _fits(live: torch.Tensor, pickled: PickledTensor, nbytes: int) -> bool:
    """Return whether the bytes of the record are exactly those of the live tensor's storage."""
    return (
        nbytes > 0
        and _memory(live) != 0
        and devices.usable(live.device)
        and not (live.is_conj() or live.is_neg())
        and (live.dtype, live.shape, live.stride()) == (pickled.dtype, pickled.shape, pickled.stride)
        and live.storage_offset() == pickled.offset == 0
        and live.untyped_storage().nbytes() == nbytes == live.numel() * live.element_size()
    )
