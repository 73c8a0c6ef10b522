"""Lists the entries of a state that have no tensors, as torch.distributed.checkpoint flattens them."""

from __future__ import annotations

from typing import Any

from fastio.checkpoint.state import ATOMS, entries

Path = tuple[str | int, ...]


def plain_entries(value: Any, path: Path) -> list[tuple[Path, Any]]:
    """Return the places and values of what a checkpoint holds one by one of a value without tensors."""
    found: list[tuple[Path, Any]] = []
    _add(value, path, frozenset(), found)
    return found


def name_of(path: Path) -> str:
    """Return the name of the entry at a place."""
    return ".".join(map(str, path))


def _add(value: Any, path: Path, above: frozenset[int], found: list[tuple[Path, Any]]) -> None:
    if type(value) in ATOMS or id(value) in above or _is_terminal(value, frozenset()):
        if path and not (isinstance(value, dict) and not value):
            found.append((path, value))
        return
    is_dict = isinstance(value, dict)
    for key, entry in entries(value):
        _add(entry, (*path, str(key) if is_dict else key), above | {id(value)}, found)


def _is_terminal(value: Any, above: frozenset[int]) -> bool:
    """Whether DCP stores a value without tensors as one object: anything but dicts, and lists that reach one."""
    if isinstance(value, dict):
        return False
    if not isinstance(value, list) or id(value) in above:
        return True
    return all(_is_terminal(entry, above | {id(value)}) for _, entry in entries(value) if type(entry) not in ATOMS)
