"""What ``policy=`` may say, and whom to ask then: specific tool, specific or aware dictionary (Fastensor paper).

A dictionary picks by the time its caller waits. Of tools equal in time (within 8 %, and by all that is known) it uses
for 16 MiB and more the one that works the processor least, by what the transports declare: no copy through the cache,
checksums on the way. That is never measured. From 256 MiB on 12 % are given away for it, whatever is known.

A path names a dictionary that the user made. It is followed as it stands: the best tool of the nearest size, the next
one only where that refuses. To go on learning from a file, load it: ``policy=Dictionary.load(path)``.
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
    """A policy made plain: exactly one of the three is set.

    ``tool``: use that one. ``dictionary``: ask that one. ``mode``: ask the default dictionary in that mode.
    """

    tool: str | None = None
    dictionary: Dictionary | None = None
    mode: str | None = None

    def ask(self, op: str, directory: str, nbytes: int | None = None) -> Dictionary:
        """The dictionary to ask and to tell about ``nbytes`` of a file in a directory.

        A ValueError where the policy is a tool.
        """
        if self.dictionary is not None:
            return self.dictionary
        if self.mode is None:
            raise ValueError(f"the policy is the tool {self.tool!r}: there is no dictionary to ask")
        return default(op if (op, self.mode) in ((SAVE, "w"), (LOAD, "r")) else self.mode, directory, nbytes)


_BY_MODE = {mode: Policy(mode=mode) for mode in MODES}
_AUTO = {SAVE: _BY_MODE["w"], LOAD: _BY_MODE["r"]}


def resolve(policy: object, op: str, candidates: Sequence[str]) -> Policy:
    """Make a policy plain.

    ``policy`` is a tool's name (one of ``candidates``), a Dictionary, a path to one (``.json``), ``"w"``, ``"r"``,
    ``"w+r"`` or ``"auto"``: ``"w"`` for a save, ``"r"`` for a load, ``"w+r"`` for anything else. What ``"auto"`` means
    can be set to a tool by ``FASTIO_POLICY``. Anything else is a ValueError, and a damaged file a DictionaryError.
    """
    if policy == AUTO:
        preset = str(config.get("policy"))
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
