"""The papers' figures, as printed, to compare ours with. ``figures.json`` has them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from fastio_bench.report.table import PAPER, ResultTable


def titles() -> list[str]:
    """The papers' titles."""
    return list(_read()["titles"].values())


def tables() -> list[ResultTable]:
    """Every table of every paper."""
    return [ResultTable(**table, origin=PAPER) for table in _read()["tables"]]


def of(*sources: str) -> list[ResultTable]:
    """The tables of these sources, as ``Fastensor, table 9``."""
    return [table for table in tables() if table.source in sources]


@cache
def _read() -> Any:
    return json.loads(Path(__file__).with_name("figures.json").read_text(encoding="utf-8"))
