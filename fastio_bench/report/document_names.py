"""Chooses the file name of a run in a results folder, so that no run with other settings is overwritten."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain, count
from pathlib import Path
from typing import Any

from fastio_bench.harness import plain_json


def place(out: Path, name: str, told: Mapping[str, Any]) -> Path:
    """``<name>.json``, or ``<name>-<number>.json`` with the first number from 2 on that is free or may be replaced.

    ``told`` is the run's document. It may replace an earlier run with the same settings on the same filesystem, except
    an interrupted run one that was complete.
    """
    own = json.loads(plain_json.text(told))
    names = chain([name], (f"{name}-{number}" for number in count(2)))
    paths = (out / f"{each}.json" for each in names)
    return next(path for path in paths if not path.exists() or _may_replace(path, own))


def _may_replace(path: Path, own: Mapping[str, Any]) -> bool:
    try:
        there = json.loads(path.read_bytes())
        return _asked(there) == _asked(own) and (there["interrupted"] or not own["interrupted"])
    except (OSError, ValueError, KeyError, TypeError):
        return False  # not a document of ours: it stays


def _asked(told: Mapping[str, Any]) -> tuple[Any, ...]:
    filesystem = told["machine"]["filesystem"]
    return told["command"], told["settings"], filesystem["kind"], filesystem["device"]
