"""Finds the names that a caller may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Collection

_MOST_NAMES = 10_000  # that are compared: more take too long


def alike_names(name: str, names: Collection[str]) -> list[str]:
    """Return at most three of ``names`` that are like ``name``; none if there are too many to compare."""
    return difflib.get_close_matches(name, names, n=3) if len(names) < _MOST_NAMES else []
