"""A dictionary file: JSON of a versioned schema, written atomically, locked against other writers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Any

from fastio.dicts.json_form import SCHEMA
from fastio.errors import DictionaryError, quoted
from fastio.files.open_file import opened_lock

MOST_NBYTES = 16 << 20
LEFTOVER_SECONDS = 3600.0
LOCK_TRIES, LOCK_WAIT_SECONDS = 20, 0.01


@contextlib.contextmanager
def errors_naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Inside, every DictionaryError names the file, and an OSError becomes a DictionaryError."""
    try:
        yield
    except DictionaryError as error:
        raise DictionaryError(f"{os.fspath(path)}: not a usable dictionary: {error}") from error
    except OSError as error:
        raise DictionaryError(f"{os.fspath(path)}: the dictionary cannot be read: {error.strerror}") from error


def read_plain(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a dictionary file. Raises OSError, and DictionaryError if it is no JSON of this schema."""
    with open(path, "rb", buffering=0, opener=_open_nonblocking) as file:
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
        raise DictionaryError(f"its schema is {quoted(schema)}, this version of fastio reads {SCHEMA!r}")
    return plain  # type: ignore[no-any-return]


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file. Without O_NONBLOCK, the open of a pipe without a writer would block."""
    return os.open(path, flags | os.O_NONBLOCK)


def write_plain(path: str | os.PathLike[str], plain: Mapping[str, Any]) -> None:
    """Write a dictionary file so that a reader finds the old one or the new one, whole. Raises OSError.

    There is no fsync: a dictionary lost in a power cut is learned anew, and a transfer must not wait for an fsync.
    """
    target = os.fspath(path)
    temporary = f"{target}.{os.getpid()}.{time.monotonic_ns()}.tmp"
    try:
        with open(temporary, "x", encoding="utf-8") as file:
            # Not json.dump: its encoder is written in Python, and takes four times as long.
            file.write(json.dumps({"schema": SCHEMA, **plain}, separators=(",", ":")))
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(path: str, patient: bool) -> Iterator[bool]:
    """Hold the lock of a lock file, against other processes and threads. Yields False if another one holds it.

    ``patient``: try for 0.2 s, else once. On a filesystem without locks, there is none: at worst the samples of one of
    two writers are lost. OSError if the file is not a regular one; a symbolic link is not followed.
    """
    with opened_lock(path) as descriptor:
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


def clear_leftovers(path: str) -> None:
    """Remove temporary files that writers left an hour ago or earlier."""
    folder, name = os.path.split(path)
    for entry in os.scandir(folder):
        if entry.name.startswith(name) and entry.name.endswith(".tmp"):
            with contextlib.suppress(OSError):
                if time.time() - entry.stat().st_mtime > LEFTOVER_SECONDS:
                    os.unlink(entry.path)
