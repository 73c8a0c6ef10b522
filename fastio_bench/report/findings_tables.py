"""Tables of findings: goals, answers, dictionaries, ways to train. Pure.

An unknown finding becomes a table if it has the shape of one (uniform rows of plain values).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fastio.dicts import Explanation
from fastio.dicts.context import Context
from fastio.dicts.explain import Entry
from fastio_bench.papers import offload_tables
from fastio_bench.peers import goals
from fastio_bench.report import cells
from fastio_bench.report.table import MEASURED, Cell, ResultTable

_MIB = 1 << 20
RAW = frozenset({"device_steps", "largest", "runs", "timeline", "timelines"})
"""Findings that only charts, or the tables of a run itself, show."""


def known(findings: Mapping[str, Any]) -> list[ResultTable]:
    """The tables of the findings that have a table of their own here. Raises as :func:`tables` does."""
    named = {name: found for name, found in findings.items() if name in _LABELLED or _is_known(name, found)}
    return tables(named)


def tables(findings: Mapping[str, Any]) -> list[ResultTable]:
    """The tables of all findings that have one. Raises KeyError, TypeError or ValueError if a known one is damaged."""
    shown: list[ResultTable] = []
    for name, found in findings.items():
        if name in RAW or not found:
            continue
        if _is_known(name, found):
            for origin, own in _by_origin(found).items():
                shown += [replace(make(own), origin=origin) for make in _KNOWN[name]]
        elif name in _LABELLED:
            shown += _LABELLED[name](found)
        else:
            shown += _plain(name, found)
    return shown


def learned(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, Explanation]]:
    """The dictionaries' answers with their labels, from the form in which ``tune`` keeps them."""
    return [
        (
            one["work"],
            Explanation(
                Context(*one["context"]),
                one["nbytes"],
                one["tool"],
                one["reason"],
                one["confidence"],
                tuple(Entry(*entry) for entry in one["entries"]),
            ),
        )
        for one in found
    ]


def _is_known(name: str, found: Any) -> bool:
    """Whether the finding has the shape of a known one: a list of objects."""
    return name in _KNOWN and isinstance(found, list) and bool(found) and isinstance(found[0], Mapping)


def _by_origin(found: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows by their origin; those without one were measured."""
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for one in found:
        parts.setdefault(one.get("origin", MEASURED), []).append(one)
    return parts


def _goals(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = ("work", "workload", "against", "asked*", "measured*", "unit", "")
    rows: list[list[Cell]] = []
    for goal in found:
        asked, measured = goals.figures(goal["asked"], goal["measured"])
        sign, verdict = "at least" if goal["least"] else "at most", "met" if goal["met"] else "missed"
        rows.append(
            [goal["work"], goal["workload"], goal["against"], f"{sign} {asked}", measured, goal["unit"], verdict]
        )
    note = "What fastio wants to reach on a quiet machine. Other work on the machine makes it miss some."
    return ResultTable("goals", "Goals", columns, rows, note=note)


def _learned(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = ("work", "uses now", "fastest", "sure %*", "takes ms*", "the others take", "why")
    rows: list[list[Cell]] = []
    for work, answer in learned(found):
        best, *others = answer.entries
        rows.append(
            [
                work,
                answer.tool,
                best.tool,
                round(answer.confidence * 100),
                None if best.seconds is None else best.seconds * 1e3,
                ", ".join(f"{other.tool} {other.relative:.2f} x" for other in others),
                answer.reason,
            ]
        )
    return ResultTable("learned", "What the dictionaries learned", columns, rows)


def _training(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = (*("way", "batch*", "step ms*", "x plain*", "spread", "CPU ms*", "peak MiB*", "gradients", "loss*"),)
    rows: list[list[Cell]] = []
    for one in found:
        low, high = one["ratio_low"], one["ratio_high"]
        rows.append(
            [
                one["way"],
                one.get("batch"),
                _scaled(one["step_s"], 1e3),
                one["ratio"],
                None if low is None or high is None else f"{low:.2f}-{high:.2f}",
                _scaled(one["cpu_s"], 1e3),
                _scaled(one["peak_bytes"], 1 / _MIB),
                "same bits" if one["same_gradients"] else f"off by {one['difference']:.1e}",
                one.get("loss"),
            ]
        )
    return ResultTable("ways", "Ways to train", columns, rows, source="Fastensor, tables 10-11")


def _transfers(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    """The transfers of a step as fastio reports them, a row for each way and tier."""
    columns = (
        *("way", "batch*", "tier", "written MiB*", "read MiB*", "stalled ms*", "predicted ms*", "actual ms*"),
        "plan",
    )
    rows: list[list[Cell]] = []
    for one in found:
        moved = one["moved"] or {}
        for tier, traffic in moved.get("tiers", {}).items():
            sizes = (_scaled(traffic.get(key), 1 / _MIB) for key in ("written_bytes", "read_bytes"))
            times = (_scaled(moved.get(key), 1e3) for key in ("stalled_s", "predicted_s", "actual_s"))
            rows.append([one["way"], one.get("batch"), tier, *sizes, *times, moved.get("status") or None])
    return ResultTable("transfers", "Transfers, a step", columns, rows)


def _depths(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = ("way", "largest depth that trains*", "smallest that does not*", "which says")
    rows = [[one["way"], one["depth"], one["fails_at"] if one["reason"] else None, one["reason"]] for one in found]
    return ResultTable("depths", "Largest depth in the memory given", columns, rows, source="Fastensor, table 12")


def _accuracy(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = ("way", "mean*", "deviation*", "each seed")
    rows = [[o["way"], o["mean"], o["spread"], ", ".join(f"{score:.4f}" for score in o["scores"])] for o in found]
    title = "Accuracy on scikit-learn's digits"
    return ResultTable("accuracy", title, columns, rows, source="Fastensor, tables 10-11")


_KNOWN: dict[str, Sequence[Callable[[Sequence[Mapping[str, Any]]], ResultTable]]] = {
    "goals": (_goals,),
    "learned": (_learned,),
    "ways": (_training, _transfers),
    "depths": (_depths,),
    "accuracy": (_accuracy,),
}
_LABELLED: dict[str, Callable[[Mapping[str, Any]], list[ResultTable]]] = {
    "simulated": offload_tables.simulated,
    "calibrated": offload_tables.calibrated,
}


_TITLES = {
    "machine": "Machine",
    "tools": "Tools",
    "ways": 'The way that bytes take with policy="auto"',
    "import_seconds": "Seconds to import fastio after torch",
}


def _plain(name: str, found: Any) -> list[ResultTable]:
    """A table of rows of plain values, or of one row for a single value or a list. Nothing for nested values."""
    title = _TITLES.get(name, name.replace("_", " "))
    if isinstance(found, Mapping) and _flat(found.values()):
        return [ResultTable(name, title, ("", ""), [[str(key), value] for key, value in found.items()])]
    if _flat([found]):
        return [ResultTable(name, title, (f"{title}*",), [[found]])]
    if not isinstance(found, list):
        return []
    if _flat(found):
        return [ResultTable(name, title, (title,), [[", ".join(map(cells.text, found))]])]
    if all(isinstance(row, (list, tuple)) and len(row) == len(found[0]) and _flat(row) for row in found):
        return [ResultTable(name, title, ("",) * len(found[0]), found)]
    if all(isinstance(row, Mapping) and row.keys() == found[0].keys() and _flat(row.values()) for row in found):
        columns = [f"{key}*" if _numbers(row[key] for row in found) else str(key) for key in found[0]]
        return [ResultTable(name, title, columns, [list(row.values()) for row in found], MEASURED)]
    return []


def _flat(values: Any) -> bool:
    return all(value is None or isinstance(value, (str, int, float)) for value in values)


def _numbers(values: Any) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
