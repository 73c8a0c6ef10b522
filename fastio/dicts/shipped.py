"""The starting dictionaries that ship with fastio."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path

from fastio.dicts.files import errors_naming, read_plain
from fastio.dicts.priors import Rule, parse_rules

_NAMES = ("wdic.json", "rdic.json")


@functools.cache
def shipped_rules() -> Sequence[Rule]:
    """The priors that ship with fastio."""
    rules: list[Rule] = []
    for name in _NAMES:
        path = Path(__file__).with_name(name)
        with errors_naming(path):
            rules += parse_rules(read_plain(path).get("priors", []))
    return rules
