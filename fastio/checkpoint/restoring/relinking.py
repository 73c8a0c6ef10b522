"""Has what refers to a saved dict, list or tensor refer to the live one that it was restored into."""

from __future__ import annotations

from typing import Any

from fastio.checkpoint.state import entries, holders, is_container, like


class Links:
    """Saved dicts, lists and tensors, and the live ones (the first, of several) that they were restored into."""

    def __init__(self) -> None:
        self._live: dict[int, Any] = {}
        self._done: dict[int, Any] = {}
        self._saved: list[Any] = []  # held, so that no other object gets their ids

    def add(self, saved: Any, live: Any) -> None:
        """The saved one was restored into the live one; a tuple, which cannot be, is left out."""
        if not isinstance(saved, tuple) and id(saved) not in self._live:
            self._live[id(saved)] = live
            self._saved.append(saved)

    def followed(self, saved: Any) -> Any:
        """A saved value, with live ones in the place of all saved ones that it refers to, at any depth."""
        return self._followed(saved, holders(saved, self._is_linked))

    def followed_within(self, saved: Any) -> Any:
        """The same dict or list, whose values are followed."""
        holding = holders([value for _, value in entries(saved)], self._is_linked)
        if holding:
            self._follow_values(saved, holding)
        return saved

    def _is_linked(self, saved: Any) -> bool:
        return id(saved) in self._live

    def _followed(self, saved: Any, holding: set[int]) -> Any:
        """``holding`` are the containers that reach one that is linked."""
        if id(saved) in self._live:
            return self._live[id(saved)]
        if id(saved) not in holding or not is_container(saved):
            return saved
        if id(saved) not in self._done:
            self._saved.append(saved)
            self._done[id(saved)] = saved
            if isinstance(saved, tuple):
                self._done[id(saved)] = like(
                    saved, "state", [self._followed(one, holding) for _, one in entries(saved)]
                )
            else:
                self._follow_values(saved, holding)
        return self._done[id(saved)]

    def _follow_values(self, saved: Any, holding: set[int]) -> None:
        base: Any = dict if isinstance(saved, dict) else list
        for key, value in list(entries(saved)):
            base.__setitem__(saved, key, self._followed(value, holding))
