"""Checks the argument ``step``."""

from __future__ import annotations

import operator
from typing import Any

from fastio.checkpoint.folder.manifest import LIMIT
from fastio.errors import kind_of, quoted


def check_new_step(step: Any) -> None:
    """Raise ValueError if a step cannot be saved under this number."""
    if type(step) is not int or not 0 <= step < LIMIT:
        raise ValueError(f"step={quoted(step)}: expected an integer, 0 or more and below 2**63{_as_integer(step)}")


def check_step(step: Any, none: str = ", or None for the newest intact one") -> None:
    """Raise TypeError for anything but an integer or, unless ``none`` is empty, None."""
    if type(step) is not int and not (none and step is None):
        raise TypeError(f"step={quoted(step)} is {kind_of(step)}: expected an integer{none}{_as_integer(step)}")


def _as_integer(step: Any) -> str:
    """The cure for an integer of NumPy, a tensor of one, or a state in the place of the step."""
    if isinstance(step, dict) or hasattr(step, "state_dict"):
        return "; a state is the second argument of save, and into= of restore"
    try:
        operator.index(step)
    except (TypeError, ValueError, RuntimeError):
        return ""
    return "" if isinstance(step, int) else "; use int(step)"
