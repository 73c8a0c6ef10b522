"""Reads and checks the JSON documents of a results folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.run_record import SCHEMA
from fastio_bench.harness.stats import Summary
from fastio_bench.report.table import ResultTable

ORDER = ("doctor", "peers", "io", "model", "checkpoint", "tools", "tune", "contend", "store", "offload", "hybrid")
"""The order of documents by command. Other commands come last, by name."""

_Row = TypeVar("_Row", ResultTable, Summary, Failure)
_Told = TypeVar("_Told")
_LISTS = ("notes", "exhibits", "summaries", "failures", "samples")


class DocumentError(ValueError):
    """A file is not a document of ``fastio-bench``, or is damaged. The message names the file and the reason."""

    def __init__(self, path: Path, reason: str, cure: str = "remove it or measure again") -> None:
        super().__init__(f"{path}: {reason}; expected JSON that `fastio-bench <command> --out DIR` wrote: {cure}")


@dataclass(frozen=True)
class Measured:
    """When (UTC, ISO 8601), on which host and by which command line; empty in documents of earlier versions."""

    date: str = ""
    host: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Document:
    """A run as ``fastio_bench.harness.run_record.Report.document`` wrote it. ``samples`` is their number."""

    path: Path
    command: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    interrupted: bool
    notes: list[str]
    findings: dict[str, Any]
    tables: list[ResultTable]
    summaries: list[Summary]
    failures: list[Failure]
    samples: int
    measured: Measured = Measured()

    @property
    def title(self) -> str:
        """The command, with the file's name if they differ: a folder may hold several runs of a command."""
        return self.command if self.path.stem == self.command else f"{self.command} ({self.path.stem})"

    @property
    def slug(self) -> str:
        """The file's name as an HTML id."""
        return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in self.path.stem)


def read_folder(folder: Path) -> list[Document]:
    """Read every document of the folder. Raises DocumentError if there is none, or if one cannot be read."""
    documents = read_any(folder)
    if not documents:
        raise DocumentError(folder, "no document (*.json) in this folder", "measure first")
    return documents


def read_any(folder: Path) -> list[Document]:
    """As :func:`read_folder`, but an empty list if there is none."""
    documents = [read(path) for path in sorted(folder.glob("*.json"))]
    return sorted(documents, key=lambda document: (_place(document.command), document.path.name))


def _place(command: str) -> tuple[int, str]:
    return (ORDER.index(command), "") if command in ORDER else (len(ORDER), command)


def read(path: Path) -> Document:
    """Read one document. Raises DocumentError."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DocumentError(path, f"cannot be read as JSON ({error})") from error
    if not isinstance(told, dict) or "schema" not in told:
        raise DocumentError(path, "no such document: it has no schema")
    if told["schema"] != SCHEMA:
        raise DocumentError(path, f"its schema is {told['schema']!r}, this version of fastio reads {SCHEMA}")
    told.setdefault("exhibits", [])  # the first documents of this schema had none
    kinds: dict[str, type] = {"command": str, "interrupted": bool, "machine": dict, "settings": dict, "findings": dict}
    for name, kind in (kinds | dict.fromkeys(_LISTS, list)).items():
        if not isinstance(told.get(name), kind):
            raise DocumentError(path, f"{name!r} is {_short(told.get(name))}, not a {kind.__name__}")
    measured = told.get("measured")
    measured = measured if isinstance(measured, dict) else {}
    tables = list(_rows(path, "exhibits", ResultTable, told["exhibits"]))
    for table in tables:
        _check(path, table)
    return Document(
        path,
        told["command"],
        told["machine"],
        told["settings"],
        told["interrupted"],
        [str(note) for note in told["notes"]],
        told["findings"],
        tables,
        list(_rows(path, "summaries", Summary, told["summaries"])),
        list(_rows(path, "failures", Failure, told["failures"])),
        len(told["samples"]),
        Measured(**{one.name: str(measured.get(one.name, "")) for one in fields(Measured)}),
    )


def checked(document: Document, tell: Callable[[Document], _Told]) -> _Told:
    """Call ``tell`` with the document. Raises DocumentError if its findings are not as their command writes them."""
    try:
        return tell(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = f"what it found is not as fastio-bench writes it ({type(error).__name__}: {error})"
        raise DocumentError(document.path, reason) from error


def _rows(path: Path, name: str, kind: type[_Row], rows: Iterable[Any]) -> Iterable[_Row]:
    """Make rows into their dataclass. Raises DocumentError unless each known field has a value of its type."""
    known = {one.name: one for one in fields(kind)}
    for row in rows:
        if not isinstance(row, Mapping):
            raise DocumentError(path, f"{name!r} has {_short(row)} where an object stands")
        missing = [key for key, one in known.items() if key not in row and one.default is MISSING]
        if missing:
            raise DocumentError(path, f"{name!r} has a row without {', '.join(missing)}")
        values = {key: row[key] for key in known if key in row}
        for key, value in values.items():
            if not _fits(str(known[key].type), value):
                raise DocumentError(path, f"{name!r} has {_short(value)} for {key!r}, which is {known[key].type}")
        yield kind(**values)


def _fits(annotation: str, value: Any) -> bool:
    """Whether a value from JSON fits a field with that annotation: text, numbers, lists, and None if it allows that."""
    if value is None:
        return "None" in annotation
    if annotation.startswith("str"):
        return isinstance(value, str)
    if annotation.startswith(("int", "float", "bool")):
        return isinstance(value, (int, float))
    return isinstance(value, list)


def _check(path: Path, table: ResultTable) -> None:
    for row in table.rows:
        if not isinstance(row, list) or len(row) != len(table.columns):
            raise DocumentError(path, f"table {table.name!r} has {_short(row)} under {len(table.columns)} columns")
        for cell in row:
            if not isinstance(cell, (str, int, float, type(None))):
                raise DocumentError(path, f"table {table.name!r} has {_short(cell)} in a cell")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
