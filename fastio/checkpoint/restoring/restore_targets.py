"""Which bytes of a step go straight into live tensors, and which are read at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from fastio.checkpoint.restoring.load_state_dicts import changes_itself_alone, loads_as_torch_does, tensors_of
from fastio.checkpoint.restoring.outline import NotedTensor, Outline, records_of
from fastio.checkpoint.state import entries, holders, is_container, is_stateful

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Targets(NamedTuple):
    """``filled`` are live tensors by the record that is read into them; ``needed`` are all records that are read."""

    filled: Mapping[str, torch.Tensor]
    needed: frozenset[str]


def is_filled(thing: Any) -> bool:
    """Whether it is restored as it is there, and not replaced: a tensor, a generator, or what has a state."""
    return is_stateful(thing) or isinstance(thing, (torch.Tensor, torch.Generator))


def takes_values(tensor: torch.Tensor) -> bool:
    """Whether the values of another tensor can be copied to it: it has a shape, which nested and lazy ones have not."""
    return not (tensor.is_nested or is_lazy(tensor))


def find_targets(live: Any, outline: Outline, sizes: Mapping[str, int]) -> Targets:
    """What a step of this outline has for a live tree; ``sizes`` are the bytes of its records.

    A record goes straight into a live tensor only if the tensor's memory is exactly what is saved, nothing else in the
    live tree has that memory, nothing else in the saved one has that record, and no code of the program's own is called
    before the tensor would be copied: else it could see the difference. What code that the pickle names may look at is
    needed in any case.
    """
    survey = _Survey(live, outline, sizes)
    survey.visit(live, outline.tree, True)
    return Targets(survey.filled, frozenset(survey.needed | outline.opaque) & sizes.keys())


class _Survey:
    def __init__(self, live: Any, outline: Outline, sizes: Mapping[str, int]) -> None:
        self._outline, self._sizes = outline, sizes
        self._holding = holders(live, is_filled)
        self._users = Counter(map(_memory, _tensors(live, self._holding)))
        self._seen: set[tuple[int, int]] = set()
        self._is_exact = True  # whether no code of the program's own has been called up to here
        self.filled: dict[str, torch.Tensor] = {}
        self.needed: set[str] = set()

    def visit(self, live: Any, noted: Any, is_top: bool = False) -> None:
        if is_stateful(live):
            self.needed |= records_of(noted)
            if loads_as_torch_does(live):
                for keys, tensor in tensors_of(live):
                    self._offer(tensor, _entry(noted, keys))
            self._is_exact = self._is_exact and changes_itself_alone(live)
        elif isinstance(live, torch.Tensor):
            self.needed |= records_of(noted)
            self._offer(live, noted)
        elif is_container(live) and (id(live) in self._holding or (is_top and isinstance(live, dict))):
            self._visit_entries(live, noted)
        else:
            self.needed |= records_of(noted)

    def _visit_entries(self, live: Any, noted: Any) -> None:
        """Of a dict that is saved as a dict, only the keys that are there are needed."""
        if (id(live), id(noted)) in self._seen:
            return
        self._seen.add((id(live), id(noted)))
        if isinstance(live, dict) and isinstance(noted, dict):
            self.needed |= records_of(list(getattr(noted, "__dict__", {}).values()))
        else:
            self.needed |= records_of(noted)
        for key, value in entries(live):
            self.visit(value, _entry(noted, (key,)))

    def _offer(self, live: torch.Tensor, noted: Any) -> None:
        if not self._is_exact or type(noted) is not NotedTensor or noted.record not in self._outline.plain:
            return
        if self._users[_memory(live)] == 1 and _fits(live, noted, self._sizes.get(noted.record, 0)):
            self.filled[noted.record] = live


def _entry(noted: Any, keys: tuple[Any, ...]) -> Any:
    """What the outline has at these keys; None if it has nothing, or nothing that can be told."""
    for key in keys:
        if isinstance(noted, dict):
            noted = noted.get(key)
        elif type(noted) in (list, tuple) and type(key) is int and key < len(noted):
            noted = noted[key]
        else:
            return None
    return noted


def _tensors(live: Any, holding: set[int]) -> Iterator[torch.Tensor]:
    """The tensors of a live tree that are written to, as often as they are found."""
    seen: set[int] = set()
    left = [live]
    while left:
        one = left.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif is_stateful(one):
            yield from (tensor for _, tensor in tensors_of(one))
        elif is_container(one) and id(one) in holding and id(one) not in seen:
            seen.add(id(one))
            left.extend(value for _, value in entries(one))


def _memory(tensor: torch.Tensor) -> int:
    """What tells the memory of a plain tensor from that of others."""
    is_plain = type(tensor) in _PLAIN and tensor.layout == torch.strided
    is_plain = is_plain and not (tensor.is_quantized or tensor.is_nested)
    return tensor.untyped_storage().data_ptr() if is_plain else 0


def _fits(live: torch.Tensor, noted: NotedTensor, nbytes: int) -> bool:
    """Whether the bytes of the record are the bytes of the live tensor's storage, all of them."""
    return (
        nbytes > 0
        and _memory(live) != 0
        and live.device.type in ("cpu", "cuda")
        and not (live.is_conj() or live.is_neg())
        and (live.dtype, live.shape, live.stride()) == (noted.dtype, noted.shape, noted.stride)
        and live.storage_offset() == noted.offset == 0
        and live.untyped_storage().nbytes() == nbytes == live.numel() * live.element_size()
    )
