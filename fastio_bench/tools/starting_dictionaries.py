"""``make dictionaries``: writes the starting dictionaries from traces of ``fastio-bench tools --record``.

It replaces the rules for one tensor, by operation and durability or residency, separately for DALI's format. Every
trace is from another machine: their differences give the uncertainty of each tool on the next one. The rules that no
trace has stay: those for many small tensors, for used memory and columns, and for device memory.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from fastio.dicts.files import read_plain
from fastio_bench.tools import trace
from fastio_bench.tools.prior_uncertainty import doubts
from fastio_bench.tools.trace import Row

NEAR = 0.75  # octaves: the rows within this distance of a size give its median bandwidth
FEWEST = 5  # the fewest such rows
FILES = {"save": "wdic.json", "load": "rdic.json"}
_BY_SIZE = ("bandwidth", "doubt")
_WRITTEN = "written by `make dictionaries`"
_USUAL = "pt"  # its rules also hold for formats that no trace has


def rules(machines: Sequence[Sequence[Row]]) -> dict[str, list[dict[str, Any]]]:
    """By operation: a rule for each work of the machines' traces. Rules for a single format come first."""
    made: dict[str, list[dict[str, Any]]] = {op: [] for op in FILES}
    works = [trace.by_work(rows) for rows in machines]
    for work, own in trace.by_work([row for rows in machines for row in rows]).items():
        context = trace.context(work, 1)
        where: dict[str, object] = {"op": context.op, "device": context.device}
        if context.format != _USUAL:
            where["format"] = context.format
        name = "durable" if context.op == "save" else "resident"
        where[name] = getattr(context, name)
        low, high = (f"{of(row.nbytes for row in own):,}" for of in (min, max))
        source = (
            f"medians of {len(own)} interleaved {work}s of one tensor of {low} to {high} bytes, whole calls, timed as "
            f"`fastio-bench tools --record` does, {_WRITTEN}"
        )
        told = bandwidths(own)
        rule = {"where": where, "source": source, "bandwidth": told}
        if apart := doubts([bandwidths(machine[work]) for machine in works if work in machine]):
            rule["doubt"] = {
                size: {tool: doubt for tool, doubt in tools.items() if tool in told[size]}
                for size, tools in apart.items()
            }
        made[context.op].insert(0 if "format" in where else len(made[context.op]), rule)
    return made


def bandwidths(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """MB/s of each tool at every octave (in bytes) with enough rows near. Ratios are medians of the rows' ratios."""
    tools = [tool for tool in rows[0].seconds if all(tool in row.seconds for row in rows)]
    usual = tools[0]
    found = {}
    for octave in range(math.floor(math.log2(min(row.nbytes for row in rows))), 64):
        nbytes = 1 << octave
        near = [row for row in rows if abs(math.log2(row.nbytes / nbytes)) <= NEAR]
        if len(near) < FEWEST:
            continue
        level = median(row.nbytes / row.seconds[usual] for row in near) / 1e6
        ratios = {tool: median(row.seconds[usual] / row.seconds[tool] for row in near) for tool in tools}
        found[str(nbytes)] = {tool: float(f"{level * ratio:.3g}") for tool, ratio in ratios.items()}
    return found


def merged(before: dict[str, Any], new: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A dictionary file with new rules. Those that were not made of traces are kept, and match first."""
    kept = [rule for rule in before["priors"] if not str(rule.get("source", "")).endswith(_WRITTEN)]
    return {**before, "priors": [*kept, *new]}


def text(dictionary: dict[str, Any]) -> str:
    """The text of a dictionary file, with one line for each size."""
    lines: dict[str, str] = {}

    def folded(tools: dict[str, float]) -> str:
        key = f"<{len(lines)}>"
        lines[json.dumps(key)] = json.dumps(tools)
        return key

    priors = [
        {
            key: {size: folded(tools) for size, tools in value.items()} if key in _BY_SIZE else value
            for key, value in rule.items()
        }
        for rule in dictionary["priors"]
    ]
    told = json.dumps({**dictionary, "priors": priors}, indent=2)
    for key, line in lines.items():
        told = told.replace(key, line, 1)
    return told + "\n"


def main(folder: str, *traces: str) -> None:
    """Rewrite the dictionaries in ``folder``. Raises ValueError, and writes nothing, if traces lack an operation."""
    made = rules([trace.read(Path(path)) for path in traces])
    lacking = [op for op, found in made.items() if not found]
    if lacking:
        raise ValueError(f"{', '.join(traces)}: got no line of a {lacking[0]}; expected saves and loads, as recorded")
    for op, name in FILES.items():
        path = Path(folder, name)
        path.write_text(text(merged(read_plain(path), made[op])))


if __name__ == "__main__":
    main(*sys.argv[1:])
