"""Chooses the tools of a file once for all transfers that read it ahead."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fastio import dicts
from fastio.dicts import Context, Dictionary
from fastio.dicts.choice import Choice
from fastio.transports import registry
from fastio.transports.transport import LOAD
from fastio.volumes.opening import folder_of


def chosen_once(policy: Any, path: str, nbytes: int) -> Any:
    """The policy for transfers that read parts of a file of ``nbytes`` at the same time.

    A dictionary chooses for them all, as for a load of the file, and learns nothing: they share the machine, so their
    times are not those that one would take. DictionaryError for a bad file.
    """
    resolved = dicts.resolve(policy, LOAD, registry.names())
    if resolved.tool is not None:
        return policy
    return _FileChoice(resolved.ask(LOAD, folder_of(path) or os.curdir, nbytes), nbytes)


class _FileChoice(Dictionary):
    def __init__(self, asked: Dictionary, nbytes: int) -> None:
        super().__init__(learn=False)
        self._asked = asked
        self._nbytes = nbytes
        self._choices: dict[tuple[str, ...], Choice] = {}

    def choose(self, context: Context, nbytes: int, candidates: Sequence[str]) -> Choice:
        key = tuple(candidates)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._asked.choose(context, self._nbytes, candidates)
            if choice.exploring:  # a try that teaches nothing: take the best
                order = (*choice.order[1:], choice.tool)
                choice = Choice(order[0], "the fastest known for a load of the file", False, order)
            self._choices[key] = choice
        return choice

    def fail(self, context: Context, nbytes: int, tool: str, reason: str) -> None:
        self._asked.fail(context, self._nbytes, tool, reason)
        self._choices.clear()
