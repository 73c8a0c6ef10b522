"""Outcomes of calls (a value or an error), their comparison, and checks that loaded objects share no memory."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from differential.classes import bytes_of
from differential.comparing import Comparison, DifferentError

_SCRIBBLE = 0xA5


class Outcome(NamedTuple):
    value: Any
    error: Exception | None


def outcome(call: Callable[[], Any]) -> Outcome:
    """Call; returns the value or the error."""
    try:
        return Outcome(call(), None)
    except Exception as error:
        return Outcome(None, error.with_traceback(None))


def compare_errors(what: str, want: Outcome, got: Outcome) -> bool:
    """Whether both are values. Raises DifferentError if only one is an error, or their types do not match."""
    if want.error is None and got.error is None:
        return True
    if want.error is None or got.error is None:
        raise DifferentError(f"{what}: torch gives {_shown(want)}, fastio {_shown(got)}")
    if not isinstance(got.error, type(want.error)):
        raise DifferentError(f"{what}: torch raises {want.error!r:.300}, fastio {got.error!r:.300}")
    return False


def _shown(one: Outcome) -> str:
    return "a value" if one.error is None else f"{type(one.error).__qualname__}: {str(one.error)[:300]}"


class Neighbours:
    """Storages that outlive the object they were loaded with, and their expected bytes."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []

    def compare(self, what: str, want: Any, call: Callable[[], Any], storages: bool = True) -> None:
        """Compare a call's outcome with the expected one; overwrite and drop some storages, and check the kept ones.

        The next load may get the overwritten memory, so bytes that it fails to fill are wrong.
        """
        got = outcome(call)
        if not compare_errors(what, want, got):
            return
        comparison = Comparison(storages)
        found = comparison.difference(want.value, got.value)
        if found is not None:
            raise DifferentError(f"{what}: {found}")
        pairs = list(comparison.pairs.values())
        kept = [pair for pair in pairs if self._rng.random() < 0.5]
        del got, comparison
        kept_already = {pair[1]._cdata for pair in kept}
        _overwrite([storage for _, storage in pairs if storage._cdata not in kept_already])
        self._held += kept
        self.check(f"{what}, when others were overwritten")
        del pairs, kept
        if self._rng.random() < 0.1:
            gc.collect(2 if self._rng.random() < 0.1 else 1)
        self.check(f"{what}, when others were dropped")

    def check(self, what: str) -> None:
        for want, got in self._held:
            if not torch.equal(bytes_of(want), bytes_of(got)):
                wrong = int((bytes_of(want) != bytes_of(got)).sum())
                raise DifferentError(
                    f"{what}: {wrong} of {want.nbytes()} bytes of a storage that was kept have changed"
                )

    def drop(self) -> None:
        """Overwrite and drop all kept storages."""
        _overwrite([storage for _, storage in self._held])
        self._held.clear()


def _overwrite(storages: list[torch.UntypedStorage]) -> None:
    for storage in storages:
        bytes_of(storage).fill_(_SCRIBBLE)
