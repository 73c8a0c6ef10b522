"""A saved tree beside a live one: which bytes go straight into memory that is there, and what is told of the rest."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from fastio.addresses import overwritten
from fastio.checkpoint.state import is_stateful
from fastio.errors import CheckpointError, quoted, shortened

Apply = Callable[[], Any]
"""To be called when all bytes are in and checked; gives what now stands in the live tree's place."""

# A leaf of none of these types may hide a tensor.
TRANSPARENT = (torch.Tensor, type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_DICTS = (dict, OrderedDict, Counter, defaultdict)


class Targets(Protocol):
    """Where the bytes of saved tensors go."""

    def offer(self, saved: torch.Tensor, live: torch.Tensor) -> bool:
        """Have the bytes of a saved tensor go straight into a live one's memory, if that is possible."""

    def need(self, saved: Any) -> None:
        """Have all tensors in this part of the saved tree filled in memory of their own."""


class NoTargets:
    """Those of a state that is in memory already: live tensors get copies."""

    def offer(self, saved: torch.Tensor, live: torch.Tensor) -> bool:
        """Never."""
        return False

    def need(self, saved: Any) -> None:
        """All of it is there."""


def bind(live: Any, saved: Any, targets: Targets, path: str = "state") -> Apply:
    """Tell ``targets`` what goes where, and give what to do afterwards. Nothing of ``live`` is changed before.

    CheckpointError, naming the place, where the two trees do not have the same shape.
    """
    if is_stateful(live):
        state = _matched(live.state_dict(), saved, targets)
        return lambda: _loaded(live, state)
    if isinstance(live, torch.Tensor):
        return _bind_tensor(live, saved, targets, path)
    if isinstance(live, torch.Generator):
        targets.need(saved)
        return lambda: live.set_state(saved.cpu())
    if isinstance(live, dict) and not (path != "state" and _is_plain(live)):
        return _bind_dict(live, saved, targets, path)
    if isinstance(live, (list, tuple)) and not _is_plain(live):
        return _bind_sequence(live, saved, targets, path)
    targets.need(saved)
    return lambda: _replaced(live, saved)


def _matched(live: Any, saved: Any, targets: Targets) -> Any:
    """The saved state, with live tensors in the place of those whose bytes go straight there."""
    if isinstance(saved, torch.Tensor):
        if isinstance(live, torch.Tensor) and targets.offer(saved, live):
            return live
    elif isinstance(saved, dict) and isinstance(live, dict):
        for key, value in saved.items():  # in place: a module's has attributes of its own
            saved[key] = _matched(live.get(key), value, targets)
        return saved
    elif type(saved) in (list, tuple) and isinstance(live, (list, tuple)) and len(saved) == len(live):
        return type(saved)(_matched(one, value, targets) for one, value in zip(live, saved, strict=True))
    targets.need(saved)
    return saved


def _loaded(live: Any, state: Any) -> Any:
    # What was filled in place is copied onto itself, which torch knows to be nothing; hooks and checks see it all.
    live.load_state_dict(state)
    return live


def _bind_tensor(live: torch.Tensor, saved: Any, targets: Targets, path: str) -> Apply:
    if not isinstance(saved, torch.Tensor) or saved.shape != live.shape:
        found = f"a tensor of shape {tuple(saved.shape)}" if isinstance(saved, torch.Tensor) else type(saved).__name__
        raise CheckpointError(f"{path} is a tensor of shape {tuple(live.shape)}, but {found} was saved")
    if targets.offer(saved, live):

        def filled() -> torch.Tensor:
            overwritten(live)
            return live

        return filled
    targets.need(saved)

    def copy() -> torch.Tensor:
        with torch.no_grad():
            return live.copy_(saved)

    return copy


def _bind_dict(live: dict[Any, Any], saved: Any, targets: Targets, path: str) -> Apply:
    if not isinstance(saved, dict):
        raise CheckpointError(f"{path} is a dict, but {type(saved).__name__} was saved")
    for key in live:
        if key not in saved:
            there = shortened(", ".join(map(repr, saved)))
            raise CheckpointError(f"{path}[{quoted(key)}] was not saved: there are {there}")
    parts = {key: bind(value, saved[key], targets, f"{path}[{key!r}]") for key, value in live.items()}

    def apply() -> dict[Any, Any]:
        for key, part in parts.items():
            live[key] = part()
        return live

    return apply


def _bind_sequence(live: Any, saved: Any, targets: Targets, path: str) -> Apply:
    if not isinstance(saved, (list, tuple)) or len(saved) != len(live):
        found = f"{len(saved)}" if isinstance(saved, (list, tuple)) else type(saved).__name__
        raise CheckpointError(f"{path} has {len(live)} entries, but {found} was saved")
    parts = [
        bind(one, value, targets, f"{path}[{at}]") for at, (one, value) in enumerate(zip(live, saved, strict=True))
    ]

    def apply() -> Any:
        values = [part() for part in parts]
        if isinstance(live, list):
            live[:] = values
            return live
        return tuple(values)

    return apply


def _replaced(live: Any, saved: Any) -> Any:
    """Plain data: a list or dict that is there keeps its identity, so that whoever holds it sees what was saved."""
    if type(live) is list and type(saved) is list:
        live[:] = saved
        return live
    if type(live) in _DICTS and type(saved) in _DICTS:
        live.clear()
        live.update(saved)
        return live
    return saved


def _is_plain(tree: Any) -> bool:
    return not any(is_stateful(one) or isinstance(one, (torch.Tensor, torch.Generator)) for one in leaves(tree))


def leaves(tree: Any) -> Iterator[Any]:
    """What is in dicts, lists, tuples and sets, at any depth."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield key
            yield from leaves(value)
    elif isinstance(tree, (list, tuple, set, frozenset)) and not isinstance(tree, torch.Size):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree
