"""Selects entries of nested dicts by name: what ``fastio.load(keys=...)`` reads and returns.

A name is a key, or keys of nested dicts joined by dots, as ``fastio inspect`` shows them. Keys may have dots, too:
where a name can be divided in several ways, the longest first key that fits counts.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fastio.errors import TensorMissingError, UnsupportedError, kind_of, quoted
from fastio.formats.alike_names import alike_names

Tree = dict[Any, "Tree | None"]
"""The selected keys of a dict: each with the selection in its value, or None for all of it."""


def checked(keys: Iterable[str]) -> tuple[str, ...]:
    """The names as a tuple. TypeError for one text, and for what is no text."""
    if isinstance(keys, str | bytes):
        raise TypeError(f"keys={keys!r}: expected a list of names, such as keys=[{keys!r}]")
    if not isinstance(keys, Iterable):
        raise TypeError(f"keys={keys!r}: expected a list of names, got {type(keys).__name__}")
    names = tuple(keys)
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"keys: expected a list of str, got {type(name).__name__} in it")
    return names


def pick(path: str, root: Any, names: Iterable[str]) -> Any:
    """Return a dict without the entries that are not named, at every level; its values are the same objects.

    TensorMissingError for a name that is not there, UnsupportedError if ``root`` is no dict.
    """
    if not isinstance(root, dict):
        raise UnsupportedError(
            f"{path}: keys= selects entries of a dict, and the file holds {kind_of(root)}; leave keys out"
        )
    tree = select(root, names, _entries)
    if isinstance(tree, str):
        raise _missing(path, tree, root)
    return _pruned(root, tree)


def select(root: Any, names: Iterable[str], entries_of: Callable[[Any], Mapping[Any, Any] | None]) -> Tree | str:
    """Find all names. Returns the first one that is not there, if there is one.

    ``entries_of`` returns the entries of a dict, and None for anything else.
    """
    finder = _Finder(entries_of)
    tree: Tree = {}
    for name in names:
        keys = finder.find(root, name)
        if keys is None:
            return name
        _add(tree, keys)
    return tree


class _Finder:
    def __init__(self, entries_of: Callable[[Any], Mapping[Any, Any] | None]) -> None:
        self._entries_of = entries_of
        self._by_text: dict[int, dict[str, tuple[Any, Any]]] = {}

    def find(self, found: Any, name: str) -> tuple[Any, ...] | None:
        """The keys that lead to a name, from the outermost dict to the innermost."""
        if id(found) not in self._by_text:
            entries = self._entries_of(found) or {}
            self._by_text[id(found)] = {
                str(key): (key, value) for key, value in entries.items() if isinstance(key, str | int)
            }
        by_text = self._by_text[id(found)]
        if name in by_text:
            return (by_text[name][0],)
        dot = name.rfind(".")
        while dot >= 0:
            if name[:dot] in by_text:
                key, value = by_text[name[:dot]]
                keys = self.find(value, name[dot + 1 :])
                if keys is not None:
                    return (key, *keys)
            dot = name.rfind(".", 0, dot)
        return None


def _add(tree: Tree, keys: tuple[Any, ...]) -> None:
    *outer, last = keys
    for key in outer:
        inner = tree.setdefault(key, {})
        if inner is None:
            return
        tree = inner
    tree[last] = None


def _pruned(entries: dict[Any, Any], tree: Tree) -> dict[Any, Any]:
    found = copy.copy(entries)
    if hasattr(entries, "__dict__"):  # a state dict's _metadata
        vars(found).update(vars(entries))
    for key, value in entries.items():
        inner = tree.get(key)
        if key not in tree:
            del found[key]
        elif inner is not None:
            found[key] = _pruned(value, inner)
    return found


def _entries(value: Any) -> Mapping[Any, Any] | None:
    return value if isinstance(value, dict) else None


def _missing(path: str, name: str, root: dict[Any, Any]) -> TensorMissingError:
    names = list(dict.fromkeys(_names(root)))
    alike = alike_names(name, names)
    if alike:
        cure = f"alike: {', '.join(map(quoted, alike))}"
    else:
        cure = f"it begins with {', '.join(quoted(key) for key in list(root)[:5])}" if root else "it is empty"
    return TensorMissingError(f"{path}: no key {quoted(name)} among the {len(names)} of the file; {cure}")


def _names(root: dict[Any, Any]) -> Iterator[str]:
    """The names of all entries, also of dicts, which are entered once."""
    entered = {id(root)}
    waiting: list[tuple[str, dict[Any, Any]]] = [("", root)]
    while waiting:
        begin, entries = waiting.pop()
        for key, value in entries.items():
            yield f"{begin}{key}"
            if isinstance(value, dict) and id(value) not in entered:
                entered.add(id(value))
                waiting.append((f"{begin}{key}.", value))
