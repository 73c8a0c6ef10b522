"""Dictionaries on disk: JSON, versioned, written atomically, merged with what other processes wrote meanwhile."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import stat
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastio.dicts.codec import SCHEMA, parse_contexts, parse_tuner, plain_tuners
from fastio.dicts.context import Context
from fastio.dicts.dictionary import LOCK, Dictionary
from fastio.dicts.fingerprint import Fingerprint
from fastio.dicts.priors import Rule, parse_rules
from fastio.dicts.tuner import Tuner
from fastio.errors import DictionaryError

MOST_NBYTES = 16 << 20
WRITE_EVERY_SECONDS = 60.0
WRITE_EVERY_CALLS = 64
LEFTOVER_SECONDS = 3600.0
LOCK_TRIES, LOCK_WAIT_SECONDS = 20, 0.01

_SHIPPED = ("wdic.json", "rdic.json")


@contextlib.contextmanager
def faults_of(path: str | os.PathLike[str]) -> Iterator[None]:
    """Name the file in every DictionaryError; a file that cannot be read is one too."""
    try:
        yield
    except DictionaryError as error:
        raise DictionaryError(f"{os.fspath(path)}: not a usable dictionary: {error}") from error
    except OSError as error:
        raise DictionaryError(f"{os.fspath(path)}: the dictionary cannot be read: {error.strerror}") from error


def read_plain(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a dictionary file. Raises OSError, or DictionaryError if it is not one of a schema known here."""
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise DictionaryError("not a regular file")
        if status.st_size > MOST_NBYTES:
            raise DictionaryError(f"larger than {MOST_NBYTES} bytes")
        data = file.read()
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DictionaryError(f"not JSON: {error}") from error
    schema = plain.get("schema") if isinstance(plain, dict) else None
    if schema != SCHEMA:
        raise DictionaryError(f"its schema is {str(schema)[:60]!r}, this version of fastio reads {SCHEMA!r}")
    return plain  # type: ignore[no-any-return]


def write_plain(path: str | os.PathLike[str], plain: Mapping[str, Any]) -> None:
    """Write a dictionary file so that a reader finds the old one or the new one, whole. Raises OSError.

    There is no fsync: a dictionary lost with the power is learned anew, and a transfer must not wait for this one.
    """
    target = os.fspath(path)
    temporary = f"{target}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        with open(temporary, "x", encoding="ascii") as file:
            json.dump({"schema": SCHEMA, **plain}, file, separators=(",", ":"))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@functools.cache
def shipped_rules() -> Sequence[Rule]:
    """The priors that ship with fastio."""
    rules: list[Rule] = []
    for name in _SHIPPED:
        path = Path(__file__).with_name(name)
        with faults_of(path):
            rules += parse_rules(read_plain(path).get("priors", []))
    return rules


class Store:
    """Keeps dictionaries in one file: read when made, written now and then while they learn, and by :meth:`write`.

    Nothing here raises: what goes wrong is a warning, and the dictionaries carry on in memory.
    """

    def __init__(
        self,
        path: str,
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
        self._warned = False
        kept = self._read()
        for dictionary in dictionaries:
            dictionary.adopt_later(kept)
            dictionary.listener = self

    def heard(self) -> None:
        """A dictionary learned something; write when enough has come together."""
        self._calls += 1
        if self._calls >= WRITE_EVERY_CALLS and self._clock() - self._written >= WRITE_EVERY_SECONDS:
            self.write(patient=False)

    def damaged(self, error: DictionaryError) -> None:
        """What was kept of a context makes no sense: say so."""
        self._warn(f"what it says of a context is ignored and learned anew: {error}")

    def write(self, *, patient: bool = True) -> None:
        """Add what was learned since the last write to the file. Does nothing where nothing was learned.

        ``patient`` says whether to wait a little for another process that is writing.
        """
        with LOCK:
            if not self._calls:
                return
            self._written = self._clock()
        try:
            os.makedirs(os.path.dirname(self.path), exist_ok=True)
            with _locked(self.path + ".lock", patient) as mine:
                if mine:
                    self._merge()
        except OSError as error:
            self._warn(f"what was learned cannot be kept: {error}; set FASTIO_DICTIONARY_DIR to a writable folder")

    def mark_written(self) -> None:
        """Forget what is not on disk yet: in a forked child, whose parent will write it."""
        self._calls = 0
        for _, cell in self._cells():
            cell.written()

    def _merge(self) -> None:
        on_disk = self._parsed(self._read())
        with LOCK:
            for dictionary in self._dictionaries:
                _merge_tuners(on_disk, dictionary.tuners)
            self.mark_written()
        write_plain(self.path, {"fingerprint": self._fingerprint, "contexts": plain_tuners(on_disk)})
        _clear_leftovers(self.path)

    def _cells(self) -> Iterator[tuple[int, Any]]:
        for dictionary in self._dictionaries:
            for tuner in dictionary.tuners.values():
                for record in tuner.records.values():
                    yield from record.curve.cells()

    def _parsed(self, kept: Mapping[Context, dict[str, Any]]) -> dict[Context, Tuner]:
        tuners = {}
        for context, text in kept.items():
            try:
                tuners[context] = parse_tuner(text)
            except DictionaryError as error:
                self.damaged(error)
        return tuners

    def _read(self) -> dict[Context, dict[str, Any]]:
        try:
            plain = read_plain(self.path)
            if plain.get("fingerprint") != self._fingerprint:
                raise DictionaryError("it was learned on another machine")
            return parse_contexts(plain.get("contexts", []))
        except FileNotFoundError:
            return {}
        except (OSError, DictionaryError) as error:
            self._warn(f"the dictionary is ignored and learned anew: {error}")
            return {}

    def _warn(self, problem: str) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(f"{self.path}: {problem}", RuntimeWarning, stacklevel=2)


def _merge_tuners(into: dict[Context, Tuner], learned: Mapping[Context, Tuner]) -> None:
    """Add the fresh samples of ``learned`` to what another process may have written meanwhile."""
    for context, tuner in learned.items():
        there = into.setdefault(context, Tuner())
        for tool, record in tuner.records.items():
            kept = there.record(tool)
            if record.used or record.failure is not None:
                kept.failure = record.failure
            for bucket, cell in record.curve.cells():
                if not (cell.fresh or cell.fresh_firsts or cell.rewritten):
                    continue
                old = kept.curve.cell(bucket)
                if cell.rewritten:
                    old.clear()
                old.extend(
                    [] if cell.doubt else cell.values[-cell.fresh :] if cell.fresh else [],
                    cell.firsts[-cell.fresh_firsts :] if cell.fresh_firsts else [],
                )


@contextlib.contextmanager
def _locked(path: str, patient: bool) -> Iterator[bool]:
    """Hold the file's lock, against other processes and threads; gives False if someone else keeps it.

    A filesystem without locks is used without: the worst is that one of two writers' samples are lost.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for attempt in range(LOCK_TRIES if patient else 1):
            if attempt:
                time.sleep(LOCK_WAIT_SECONDS)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            except OSError:
                yield True
                return
            try:
                yield True
            finally:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            return
        yield False
    finally:
        os.close(descriptor)


def _clear_leftovers(path: str) -> None:
    """Remove the temporaries of writers that died."""
    folder, name = os.path.split(path)
    for entry in os.scandir(folder):
        if entry.name.startswith(name) and entry.name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > LEFTOVER_SECONDS:
                    os.unlink(entry.path)
