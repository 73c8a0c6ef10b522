"""The learned dictionaries on the disk: what is in them, and how to remove them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

from fastio.dicts.context import Context
from fastio.dicts.defaults import folder
from fastio.dicts.files import locked, read_plain
from fastio.dicts.fingerprint import machine
from fastio.dicts.json_form import parse_contexts, parse_tuner
from fastio.dicts.sizes import bucket_nbytes
from fastio.dicts.tool_record import median
from fastio.dicts.tuner import Tuner
from fastio.errors import DictionaryError, TransferError

_NAME = re.compile(r"[A-Za-z0-9]+-[0-9a-f]{16}\.json")
_MACHINE = ("kernel", "gpu", "fastio", "torch", "tools")


@dataclass(frozen=True, slots=True)
class Learned:
    """What a dictionary knows of one context: the fastest tool at each size in bytes, and the tools that failed."""

    context: Context
    times: int
    tools: tuple[str, ...]
    fastest: dict[int, str]
    failures: dict[str, str]


@dataclass(frozen=True, slots=True)
class StoredDictionary:
    """One file. ``current``: it is of this machine, with these versions. ``problem``: why it cannot be used."""

    path: str
    nbytes: int
    fingerprint: dict[str, str]
    current: bool
    learned: tuple[Learned, ...]
    problem: str = ""


def stored() -> list[StoredDictionary]:
    """The dictionaries of this user; none if they have no folder, or it is not there. OSError if it is unreadable."""
    return [_read(path) for path in _files()]


def clear() -> list[str]:
    """Remove the dictionaries and return their paths.

    A process that is running writes its own again when it ends. OSError if one cannot be removed.
    """
    removed = []
    for path in _files():
        with locked(path + ".lock", patient=True):
            os.unlink(path)
        removed.append(path)
    return removed


def _files() -> list[str]:
    """The files with the names of dictionaries: the folder may hold others."""
    where = folder()
    if where is None or not os.path.lexists(where):
        return []
    return sorted(entry.path for entry in os.scandir(where) if _NAME.fullmatch(entry.name) and not entry.is_dir())


def _read(path: str) -> StoredDictionary:
    nbytes = os.lstat(path).st_size
    try:
        plain = read_plain(path)
        fingerprint = _fingerprint(plain.get("fingerprint"))
        contexts = parse_contexts(plain.get("contexts", []), _refuse)
        learned = tuple(_learned(context, parse_tuner(text)) for context, text in contexts.items())
    except (OSError, DictionaryError) as error:
        problem = error.strerror if isinstance(error, OSError) and not isinstance(error, TransferError) else error
        return StoredDictionary(path, nbytes, {}, False, (), str(problem))
    return StoredDictionary(path, nbytes, fingerprint, not differing(fingerprint), learned)


def differing(fingerprint: dict[str, str]) -> dict[str, str]:
    """What this machine and these versions have in place of what a fingerprint has."""
    here = dict(zip(_MACHINE, machine(), strict=True))
    return {name: text for name, text in here.items() if fingerprint.get(name) != text}


def _refuse(error: DictionaryError) -> None:
    raise error


def _fingerprint(plain: Any) -> dict[str, str]:
    if not isinstance(plain, dict) or not all(isinstance(text, str) for text in plain.values()):
        raise DictionaryError("its fingerprint is no map of names to texts")
    return plain


def _learned(context: Context, tuner: Tuner) -> Learned:
    best: dict[int, tuple[float, str]] = {}
    times, tools = 0, []
    for tool, record in tuner.records.items():
        for bucket, cell in record.samples.items():
            times += len(cell.values) + len(cell.firsts)
            values = cell.values or cell.firsts
            if values:
                best[bucket] = min(best.get(bucket, (float("inf"), "")), (median(values), tool))
        tools += [tool] if any(cell.values or cell.firsts for cell in record.samples.values()) else []
    fastest = {bucket_nbytes(bucket): tool for bucket, (_, tool) in sorted(best.items())}
    failures = {tool: record.failure.reason for tool, record in tuner.records.items() if record.failure is not None}
    return Learned(context, times, tuple(tools), fastest, failures)
