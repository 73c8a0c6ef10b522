"""Chooses the steps to keep. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def kept(steps: Sequence[int], keep: int | None, keep_every: int | None) -> set[int]:
    """Return the last ``keep`` (None: all) of ``steps``, in the order of saving, and multiples of ``keep_every``."""
    if keep is None:
        return set(steps)
    every = {step for step in steps if step % keep_every == 0} if keep_every is not None else set()
    return set(steps[len(steps) - min(keep, len(steps)) :]) | every
