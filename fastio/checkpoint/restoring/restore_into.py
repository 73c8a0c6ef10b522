"""Restores a saved tree into a live one."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch

from fastio.checkpoint.generators import state_in
from fastio.checkpoint.restoring.load_state_dicts import has_load_hooks, loads_as_torch_does, tensors_of
from fastio.checkpoint.restoring.relinking import Links
from fastio.checkpoint.restoring.restore_targets import has_plain_memory, is_restored_in_place, takes_values
from fastio.checkpoint.restoring.state_mismatch import mismatch
from fastio.checkpoint.state import attributes_of, entries, find_holders, is_container, is_stateful, like
from fastio.errors import CheckpointError, CorruptFileError, kind_of, put_before, quoted, shortened
from fastio.formats.layout import storage_offset_bytes
from fastio.formats.partial_overlaps import Saved, partial_overlap
from fastio.memory.float4 import copyable
from fastio.memory.raw_memory import mark_overwritten
from fastio.sizes import exact_size

Apply = Callable[[], Any]
"""Changes the live object, and returns the object that belongs in its place."""

_CURE = "expected into= to have the shape of what was saved: restore() without into= shows that"
_DICTS = (dict, OrderedDict, Counter, defaultdict)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def require_memory(live: Any) -> None:
    """Raise CheckpointError, naming the place, for a live tensor whose memory was freed: a copy to it would crash.

    Modules with pre-hooks for loading, which may give tensors memory, are skipped.
    """
    holders = find_holders(live, is_restored_in_place)
    seen: set[int] = set()
    left = [("state", live)]
    while left:
        path, entry = left.pop()
        if isinstance(entry, torch.Tensor):
            _require_memory(entry, path)
        elif isinstance(entry, torch.nn.Module) and not has_load_hooks(entry):
            for (name,), tensor in tensors_of(entry):
                _require_memory(tensor, f"{path}: its {name}")
        elif id(entry) in holders and id(entry) not in seen:
            seen.add(id(entry))
            left.extend((f"{path}[{key!r}]", value) for key, value in entries(entry))


def bind(live: Any, saved: Any) -> Apply:
    """Return a function that restores ``saved``, which was read and checked, into ``live``; ``live`` is unchanged yet.

    Dicts and lists that hold tensors, generators or objects with a state are traversed: objects are restored by their
    ``load_state_dict``, tensors by a copy, unless the saved tensor lies in the live one's memory already. Other dicts
    and lists get the saved contents. Everything else is replaced by the saved value. References to a saved dict, list
    or tensor that was restored into a live one become references to the live one.

    CheckpointError, naming the place, if the two trees do not have the same shape, or two live tensors share a part of
    their memory and were not saved so.
    """
    _require_kind(live, saved)
    binding = _Binding(find_holders(live, is_restored_in_place))
    apply = binding.bind(live, saved, "state")
    if both := partial_overlap(binding.filled):
        raise CheckpointError(
            f"{both[0]} and {both[1]} share a part of their memory, and were not saved so: one would overwrite the "
            "other; nothing was restored; give one of them a clone()"
        )
    return apply


def _require_kind(live: Any, saved: Any) -> None:
    """Raise CheckpointError for a tree that is no dict, or no list or tuple, where that was saved."""
    if is_restored_in_place(live) or not is_container(saved):
        return
    kinds = (dict,) if isinstance(saved, dict) else (list, tuple)
    if not isinstance(live, kinds):
        raise CheckpointError(f"state is {kind_of(live)}, but {kind_of(saved)} was saved; {_CURE}")


class _Binding:
    def __init__(self, holders: set[int]) -> None:
        self._holders = holders
        self._bound: dict[tuple[int, int], _Once] = {}
        self._links = Links()
        self.filled: list[tuple[str, torch.Tensor, Saved]] = []

    def bind(self, live: Any, saved: Any, path: str) -> Apply:
        if is_stateful(live):
            self._note_state(live, saved, path)
            return lambda: _loaded(live, saved, path)
        if isinstance(live, torch.Tensor):
            return self._bind_tensor(live, saved, path)
        if isinstance(live, torch.Generator):
            return self._bind_generator(live, saved, path)
        if not is_container(live):
            return lambda: self._links.relink(saved)
        key = (id(live), id(saved))
        if key not in self._bound:
            self._bound[key] = once = _Once(live)
            if isinstance(live, dict) and (path == "state" or id(live) in self._holders):
                once.call = self._bind_dict(live, saved, path)
            elif id(live) in self._holders:
                once.call = self._bind_sequence(live, saved, path)
            else:
                once.call = self._bind_plain(live, saved)
        elif isinstance(live, tuple) and self._bound[key].call is None:
            raise CheckpointError(f"{path} is a tuple that holds itself: it cannot be restored into; leave out into=")
        return self._bound[key]

    def _bind_generator(self, live: torch.Generator, saved: Any, path: str) -> Apply:
        state = state_in(saved, path)
        self._links.add(saved, live)

        def apply() -> torch.Generator:
            live.set_state(state)
            return live

        return apply

    def _bind_tensor(self, live: torch.Tensor, saved: Any, path: str) -> Apply:
        if not takes_values(live) or (isinstance(saved, torch.Tensor) and not takes_values(saved)):
            return lambda: self._links.relink(saved)
        if not isinstance(saved, torch.Tensor) or saved.shape != live.shape:
            found = f"a tensor of shape {tuple(saved.shape)}" if isinstance(saved, torch.Tensor) else kind_of(saved)
            raise CheckpointError(f"{path} is a tensor of shape {tuple(live.shape)}, but {found} was saved; {_CURE}")
        if live.is_meta != saved.is_meta:
            raise CheckpointError(
                f"{path} is on {live.device}, but a tensor on {saved.device} was saved, and the meta device has no "
                "values; restore without into="
            )
        self._note(path, live, saved)
        if (type(saved), saved.dtype, saved.device) == (type(live), live.dtype, live.device):
            self._links.add(saved, live)

        def apply() -> torch.Tensor:
            if _has_memory_of(live, saved):
                mark_overwritten(live)
            else:
                try:
                    _copy(live, saved)
                except (RuntimeError, TypeError) as error:
                    raise CheckpointError(f"{path} cannot take what was saved: {shortened(error)}") from error
            live.__dict__.update(self._links.relink_contents(saved.__dict__))
            return live

        return apply

    def _note(self, path: str, live: torch.Tensor, saved: torch.Tensor) -> None:
        if has_plain_memory(live) and has_plain_memory(saved):
            start = storage_offset_bytes(saved)
            storage = (saved.device, saved.untyped_storage().data_ptr())
            place = Saved(storage, start, saved.dtype, tuple(saved.shape), saved.stride())
            self.filled.append((path, live, place))

    def _note_state(self, live: Any, saved: Any, path: str) -> None:
        """Note the tensors of a module or optimizer that are copied one to one. CheckpointError if it refuses them."""
        if problem := mismatch(live, saved):
            raise CheckpointError(
                f"{path}, {kind_of(live)}, cannot take the state that was saved for it: {problem}; "
                f"nothing was restored; {_cure(saved, path)}"
            )
        for keys, tensor in tensors_of(live) if loads_as_torch_does(live) else ():
            found = saved
            for key in keys:
                found = found.get(key) if isinstance(found, dict) else None
            if isinstance(found, torch.Tensor) and found.shape == tensor.shape:
                self._note(f"{path}: its {'.'.join(map(str, keys))}", tensor, found)

    def _bind_dict(self, live: dict[Any, Any], saved: Any, path: str) -> Apply:
        if not isinstance(saved, dict):
            raise CheckpointError(f"{path} is a dict, but {kind_of(saved)} was saved; {_CURE}")
        self._links.add(saved, live)
        values = dict(entries(saved))
        parts = {}
        for key, value in entries(live):
            if key not in values:
                there = shortened(", ".join(map(quoted, values)))
                raise CheckpointError(f"{path}[{quoted(key)}] was not saved: there are {there}; {_CURE}")
            parts[key] = self.bind(value, values[key], f"{path}[{key!r}]")

        def apply() -> dict[Any, Any]:
            for key, part in parts.items():
                value = part()
                if dict.get(live, key) is not value:  # a subclass may do more than set the entry
                    live[key] = value
            self._set_attributes(live, saved)
            return live

        return apply

    def _bind_sequence(self, live: Any, saved: Any, path: str) -> Apply:
        if not isinstance(saved, (list, tuple)) or len(saved) != len(live):
            found = f"one of {len(saved)}" if isinstance(saved, (list, tuple)) else kind_of(saved)
            raise CheckpointError(f"{path} has {len(live)} entries, but {found} was saved; {_CURE}")
        self._links.add(saved, live)
        pairs = zip(entries(live), entries(saved), strict=True)
        parts = [self.bind(entry, value, f"{path}[{at}]") for (at, entry), (_, value) in pairs]

        def apply() -> Any:
            values = [part() for part in parts]
            if isinstance(live, list):
                live[:] = values
            elif any(entry is not value for (_, entry), value in zip(entries(live), values, strict=True)):
                return like(live, path, values)
            return live

        return apply

    def _bind_plain(self, live: Any, saved: Any) -> Apply:
        """Fill a live list or dict in place, so that other references to it see the saved contents."""
        if type(live) is list and type(saved) is list:
            self._links.add(saved, live)

            def fill_list() -> Any:
                live[:] = self._links.relink_contents(saved)
                return live

            return fill_list
        if type(live) in _DICTS and type(saved) in _DICTS:
            self._links.add(saved, live)

            def fill_dict() -> Any:
                contents = self._links.relink_contents(saved)
                live.clear()
                live.update(contents)
                self._set_attributes(live, saved)
                return live

            return fill_dict
        return lambda: self._links.relink(saved)

    def _set_attributes(self, live: Any, saved: Any) -> None:
        """Restore a dict's ``default_factory`` and the attributes that a program set on it."""
        if isinstance(live, defaultdict) and isinstance(saved, defaultdict):
            live.default_factory = saved.default_factory
        if attributes := attributes_of(saved):
            attributes_of(live).update(self._links.relink_contents(attributes))


class _Once:
    """Calls ``call`` once and returns its result each time; returns ``live`` while it runs."""

    def __init__(self, live: Any) -> None:
        self.call: Apply | None = None
        self._result = live
        self._is_called = False

    def __call__(self) -> Any:
        if not self._is_called and self.call is not None:
            self._is_called = True
            self._result = self.call()
        return self._result


def _cure(saved: Any, path: str) -> str:
    if path == "state" and isinstance(saved, dict) and "param_groups" not in saved:
        keys = shortened(", ".join(f"{quoted(key)}: ..." for key in saved))
        return f"pass as into= the tree that was saved: {{{keys}}}"
    return _CURE


def _loaded(live: Any, state: Any, path: str) -> Any:
    # Tensors that were filled in place are copied onto themselves, which torch skips; hooks and checks still run.
    try:
        live.load_state_dict(state)
    except Exception as error:
        if len(error.args) == 1 and isinstance(error.args[0], str) and not isinstance(error, CorruptFileError):
            overwritten = "" if path == "state" else "what is before it in the tree was overwritten; "
            error.args = (f"{error.args[0].rstrip()}; {overwritten}{_cure(state, path)}",)
        put_before(error, f"{path}, {kind_of(live)}, cannot take the state that was saved for it: ")
        raise
    return live


@torch.no_grad()
def _copy(live: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy a tensor to a live one. Of an expanded dimension of it (stride 0), copy one index, if all are the same."""
    if type(live) in _PLAIN and live.layout == saved.layout == torch.strided:
        for dim, stride in enumerate(live.stride()):
            if stride == 0 and live.shape[dim] > 1:
                first = saved.narrow(dim, 0, 1)
                if saved.stride(dim) == 0 or torch.equal(first.expand_as(saved), saved):
                    live, saved = live.narrow(dim, 0, 1), first
    target, source = copyable(live, saved)
    target.copy_(source)


def _has_memory_of(live: torch.Tensor, saved: torch.Tensor) -> bool:
    """Return whether the live tensor was filled in place: the saved one then lies in its memory."""
    return (
        type(live) in _PLAIN
        and type(saved) in _PLAIN
        and live.layout == saved.layout == torch.strided
        and live.device == saved.device
        and live.data_ptr() == saved.data_ptr() != 0
    )


def _require_memory(live: torch.Tensor, path: str) -> None:
    if type(live) not in _PLAIN or live.layout != torch.strided or not takes_values(live):
        return
    if live.is_meta or live.numel() == 0:
        return
    last = live.storage_offset() + sum((n - 1) * stride for n, stride in zip(live.shape, live.stride(), strict=True))
    needed = (last + 1) * live.element_size()
    if (found := live.untyped_storage().nbytes()) < needed:
        raise CheckpointError(
            f"{path} is a tensor of shape {tuple(live.shape)} whose storage has {exact_size(found)}, expected "
            f"{exact_size(int(needed))}: its "
            "memory was freed; give it back before the restore (untyped_storage().resize_)"
        )
