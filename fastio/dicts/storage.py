"""Learned dictionaries on disk, merged with other processes' times."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, Dictionary
from fastio.dicts.files import clear_leftovers, locked, read_plain, write_plain
from fastio.dicts.fingerprint import Fingerprint
from fastio.dicts.json_form import parse_contexts, parse_tuner, plain_tuners
from fastio.dicts.tool_record import Samples
from fastio.dicts.tuner import Tuner
from fastio.errors import DictionaryError
from fastio.runtime.gc_pause import gc_paused

WRITE_EVERY_SECONDS = 60.0
WRITE_EVERY_CALLS = 64
FIRST_WRITE_CALLS = 16  # and after twice as many: what others that began at the same time learn is of use early

_NOT_KEPT = "what was learned cannot be kept; set FASTIO_DICTIONARY_DIR to a writable folder"


class Store:
    """Keeps dictionaries in one file: reads it when made, and writes it at most once a minute, or by :meth:`write`.

    So processes on one machine, such as the ranks of a training, share what they learn: after each write the
    dictionaries also learn the times that others wrote, of tools and sizes that they have no times of. The first
    writes come earlier.
    ``path`` is None if there is no place for a file. Problems are warnings, not errors: the dictionaries then work in
    memory only.
    """

    def __init__(
        self,
        path: str | None,
        fingerprint: Fingerprint,
        dictionaries: Sequence[Dictionary],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = path
        self._fingerprint = {name: getattr(fingerprint, name) for name in Fingerprint._fields}
        self._dictionaries = dictionaries
        self._clock = clock
        self._written = clock()
        self._calls = 0
        self._due = FIRST_WRITE_CALLS
        self._warned = False
        kept = self._read()
        for dictionary in dictionaries:
            dictionary.adopt_later(kept)
            dictionary.listener = self

    def on_learned(self) -> None:
        """Count an observation; write after 16, 32, then each time after 64 of them and 60 seconds."""
        self._calls += 1
        if self._calls < self._due:
            return
        if self._due < WRITE_EVERY_CALLS or self._clock() - self._written >= WRITE_EVERY_SECONDS:
            self.write(patient=False)

    def on_damaged(self, error: DictionaryError) -> None:
        """Warn that a stored context is damaged."""
        self._warn(f"what it says of a context is ignored and learned anew: {error}")

    def write(self, *, patient: bool = True) -> None:
        """Add what was learned since the last write to the file. Does nothing if nothing was learned.

        ``patient``: wait up to 0.2 s for another process that is writing.
        """
        with LOCK:
            if not self._calls:
                return
            self._written = self._clock()
        if self.path is None:
            self._warn(f"there is no home directory: {_NOT_KEPT}")
            return
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with locked(self.path + ".lock", patient) as mine:
                if mine:
                    with gc_paused():  # it would look at all of torch's objects, which takes 100 ms
                        self._merge(self.path)
        except OSError as error:
            self._warn(f"{error}: {_NOT_KEPT}")

    def mark_written(self) -> None:
        """Mark everything as written: after a write, and in a forked child, whose parent will write it."""
        self._calls = 0
        for cell in self._cells():
            cell.written()

    def _merge(self, path: str) -> None:
        """Write the contexts that this process uses, merged with the file's; others stay as they were read."""
        kept = self._read()
        with LOCK:
            used = {context for dictionary in self._dictionaries for context in dictionary.tuners}
            on_disk = self._parsed({context: kept.pop(context) for context in used & kept.keys()})
            for dictionary in self._dictionaries:
                _merge_tuners(on_disk, dictionary.tuners)
            self.mark_written()
        for tuner in on_disk.values():
            tuner.best.clear()  # the times decide, also those that other processes wrote
        write_plain(path, {"fingerprint": self._fingerprint, "contexts": plain_tuners(on_disk, kept)})
        clear_leftovers(path)
        self._due = min(2 * self._due, WRITE_EVERY_CALLS)
        for dictionary in self._dictionaries:
            dictionary.learn_from_others(on_disk)
            dictionary.adopt_later(kept)

    def _cells(self) -> Iterator[Samples]:
        for dictionary in self._dictionaries:
            for tuner in dictionary.tuners.values():
                for record in tuner.records.values():
                    yield from record.samples.values()

    def _parsed(self, kept: Mapping[Context, dict[str, Any]]) -> dict[Context, Tuner]:
        tuners = {}
        for context, text in kept.items():
            try:
                tuners[context] = parse_tuner(text)
            except DictionaryError as error:
                self.on_damaged(error)
        return tuners

    def _read(self) -> dict[Context, dict[str, Any]]:
        """The contexts of the file; empty if it cannot be used."""
        if self.path is None:
            return {}
        try:
            plain = read_plain(self.path)
            if plain.get("fingerprint") != self._fingerprint:
                raise DictionaryError("it was learned on another machine, or with other versions")
            return parse_contexts(plain.get("contexts", []), self.on_damaged)
        except FileNotFoundError:
            return {}
        except (OSError, DictionaryError) as error:
            self._warn(f"the dictionary is ignored and learned anew: {error}")
            return {}

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            name = self.path or "fastio's dictionaries"
            warnings.warn(f"{name}: {problem}", RuntimeWarning, stacklevel=2)


def _merge_tuners(into: dict[Context, Tuner], learned: Mapping[Context, Tuner]) -> None:
    """Add the fresh samples of ``learned`` to ``into``, which other processes may have written meanwhile."""
    for context, tuner in learned.items():
        there = into.setdefault(context, Tuner())
        for tool, record in tuner.records.items():
            kept = there.record(tool)
            if record.used or record.failure is not None:
                kept.failure = record.failure
            for bucket, cell in record.samples.items():
                if cell.fresh or cell.fresh_firsts or cell.rewritten:
                    kept.cell(bucket).merge(cell)
