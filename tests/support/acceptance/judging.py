"""Compares fastio with a format's own library on a file, and reads the table of intended differences."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastio
from faults.fuzz import same

_DOCUMENT = Path(__file__).parents[3] / "docs" / "acceptance.md"
_ROW = re.compile(r"^\| (?P<names>`[^|]+`) \| (?P<differs>accepts|refuses) \|", re.MULTILINE)
LONGEST_MESSAGE = 1200  # characters; a message may quote the file several times, about 200 characters each

Load = Callable[[Any], Any]


def exceptions(chapter: str) -> dict[str, str]:
    """The files of a chapter for which fastio differs on purpose, by name: whether it "accepts" or "refuses" them."""
    text = _DOCUMENT.read_text().partition(f"## {chapter}\n")[2].partition("\n## ")[0]
    found = {name: row["differs"] for row in _ROW.finditer(text) for name in re.findall("`([^`]+)`", row["names"])}
    assert found
    return found


def outcome(load: Load, source: Any) -> tuple[Any, Exception | None]:
    """Load; returns the object or the error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about unusual files
        try:
            return load(source), None
        except Exception as error:
            return None, error


def difference(
    expected: tuple[Any, Exception | None], got: tuple[Any, Exception | None], exception: str | None, layout: bool
) -> str:
    """What is wrong with fastio's outcome, given the library's; empty if it is right."""
    (obj, refusal), (found, error) = expected, got
    if isinstance(error, fastio.FastIOError) and len(str(error)) > LONGEST_MESSAGE:
        return f"an error of {len(str(error))} characters, at most {LONGEST_MESSAGE} are allowed"
    if exception == "refuses":
        if refusal is not None:
            return f"no exception any more: the library refuses, too: {refusal}"
        return "" if isinstance(error, fastio.FastIOError) else f"it should be refused, but gave {error!r}"
    if exception == "accepts":
        return "no exception any more: the library accepts" if refusal is None else _unless(error)
    if refusal is None:
        return _unless(error) or ("" if same(found, obj, layout) else "another object than the library's")
    if error is None:
        return f"the library refuses ({refusal}), fastio accepts"
    if isinstance(error, (fastio.FastIOError, type(refusal))):
        return ""
    return f"the library refuses with {refusal!r}, fastio with {error!r}"


def _unless(error: Exception | None) -> str:
    return f"the library accepts, fastio refuses: {error!r}" if error is not None else ""
