"""Resolves ``policy=`` to a tool, a dictionary, or a mode of the default dictionary (Fastensor paper: specific, aware).

A dictionary chooses by the time that its caller waits. For 16 MiB and more, of tools equal in time (within 8 % and the
uncertainty), it uses the one that takes least CPU. That is not measured: the transports declare whether they copy
through the page cache and whether they compute checksums on the way. From 256 MiB on, 12 % more time is accepted
for it, whatever the uncertainty.

A path names a dictionary that the user made. It is frozen: the best tool of the nearest size is used, the next one only
if that refuses. To go on learning from a file, load it: ``policy=Dictionary.load(path)``.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from fastio import config
from fastio.dicts.defaults import default, dictionary_at
from fastio.dicts.dictionary import LOAD, SAVE, Dictionary
from fastio.dicts.wrdic import MODES

AUTO = "auto"


class Policy(NamedTuple):
    """A resolved policy: exactly one of the three is set.

    ``tool``: use it. ``dictionary``: it chooses. ``mode``: the default dictionary chooses, in this mode.
    """

    tool: str | None = None
    dictionary: Dictionary | None = None
    mode: str | None = None

    def ask(self, op: str, directory: str, nbytes: int | None = None) -> Dictionary:
        """The dictionary that chooses and learns for a transfer of ``nbytes`` of a file in a directory.

        ValueError if the policy is a tool.
        """
        if self.dictionary is not None:
            return self.dictionary
        if self.mode is None:
            raise ValueError(f"the policy is the tool {self.tool!r}: there is no dictionary to ask")
        return default(op if (op, self.mode) in ((SAVE, "w"), (LOAD, "r")) else self.mode, directory, nbytes)


_BY_MODE = {mode: Policy(mode=mode) for mode in MODES}
_AUTO = {SAVE: _BY_MODE["w"], LOAD: _BY_MODE["r"]}


def resolve(policy: object, op: str, candidates: Sequence[str]) -> Policy:
    """Resolve a policy.

    ``policy`` is a tool's name (one of ``candidates``), a Dictionary, a path to one (``.json``), ``"w"``, ``"r"``,
    ``"w+r"`` or ``"auto"``: ``"w"`` for a save, ``"r"`` for a load, ``"w+r"`` for anything else. What ``"auto"`` means
    can be set to a tool by ``FASTIO_POLICY``. Anything else is a ValueError, and a damaged file a DictionaryError.
    """
    if policy == AUTO:
        preset = str(config.get("policy")) or AUTO
        if preset == AUTO:
            return _AUTO.get(op, _BY_MODE["w+r"])
        if preset not in candidates:
            tools = ", ".join(candidates)
            raise ValueError(f"FASTIO_POLICY={preset!r}: expected {AUTO!r} or the name of a tool ({tools})")
        return Policy(tool=preset)
    if isinstance(policy, Dictionary):
        return Policy(dictionary=policy)
    if isinstance(policy, str):
        if policy in _BY_MODE:
            return _BY_MODE[policy]
        if policy in candidates:
            return Policy(tool=policy)
    if isinstance(policy, os.PathLike) or (isinstance(policy, str) and policy.endswith(".json")):
        path = os.fspath(policy)
        if isinstance(path, str):
            return Policy(dictionary=dictionary_at(path))
    raise ValueError(
        f"policy={policy!r}: expected 'auto', 'w', 'r', 'w+r', the name of a tool ({', '.join(candidates)}), "
        f"the path of a dictionary ending in .json, or a fastio.dicts.Dictionary"
    )
