"""Replaces references to a saved dict, list, tensor or generator by the live one that it was restored into.

Other saved generators are replaced by new ones.
"""

from __future__ import annotations

from typing import Any

from fastio.checkpoint.generators import is_saved_generator, made_again
from fastio.checkpoint.state import entries, find_holders, is_container, like


class Links:
    """Maps saved dicts, lists and tensors to the live ones (the first of several) that they were restored into."""

    def __init__(self) -> None:
        self._live: dict[int, Any] = {}
        self._done: dict[int, Any] = {}
        self._saved: list[Any] = []  # keeps them alive, so that no other object gets their ids

    def add(self, saved: Any, live: Any) -> None:
        """Note that a saved object was restored into a live one. Tuples are ignored: they cannot be restored into."""
        if not isinstance(saved, tuple) and id(saved) not in self._live:
            self._live[id(saved)] = live
            self._saved.append(saved)

    def relink(self, saved: Any) -> Any:
        """Return a saved value with all references, at any depth, to mapped objects and generators replaced."""
        return self._relink(saved, find_holders(saved, self._is_linked))

    def relink_contents(self, saved: Any) -> Any:
        """Relink the values of a dict or list in place and return it."""
        holders = find_holders([value for _, value in entries(saved)], self._is_linked)
        if holders:
            self._relink_values(saved, holders)
        return saved

    def _is_linked(self, saved: Any) -> bool:
        if id(saved) not in self._live and is_saved_generator(saved):
            self.add(saved, made_again(saved))
        return id(saved) in self._live

    def _relink(self, saved: Any, holders: set[int]) -> Any:
        """``holders`` are the ids of containers that reach a mapped object, or a generator."""
        if id(saved) in self._live:
            return self._live[id(saved)]
        if id(saved) not in holders or not is_container(saved):
            return saved
        if id(saved) not in self._done:
            self._saved.append(saved)
            self._done[id(saved)] = saved
            if isinstance(saved, tuple):
                self._done[id(saved)] = like(
                    saved, "state", [self._relink(value, holders) for _, value in entries(saved)]
                )
            else:
                self._relink_values(saved, holders)
        return self._done[id(saved)]

    def _relink_values(self, saved: Any, holders: set[int]) -> None:
        base: Any = dict if isinstance(saved, dict) else list
        for key, value in list(entries(saved)):
            base.__setitem__(saved, key, self._relink(value, holders))
