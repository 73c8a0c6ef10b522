"""``fastio-bench peers``: saves and loads by other libraries and by fastio."""

from __future__ import annotations

import math
from pathlib import Path

from fastio_bench.harness import fresh_process, room, warmup
from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.rounds import describe
from fastio_bench.harness.stats import summarise
from fastio_bench.io import sweep
from fastio_bench.machine import disk_limit, limit_tables
from fastio_bench.peers import catalogue as every
from fastio_bench.peers import compare, goals, verdict
from fastio_bench.peers.options import PEERS, WORKLOADS, WORKS
from fastio_bench.peers.peer import Peer
from fastio_bench.report import summary_tables
from fastio_bench.report.table import ResultTable
from fastio_bench.tools import tune
from fastio_bench.workloads import objects

_MOST_IMPORTS = 9
_QUICK_SECONDS = 120.0  # the rounds are chosen to fit into these
_LEFT_OUT = (
    f"left out with --quick: {'; '.join(name for name in PEERS if name not in compare.QUICK_PEERS)}. Each takes part "
    "with --tool NAME, and all do without --quick; pip install '.[peers]' in a clone has those that need no compiler"
)


def peers(
    command: CommandRun, rounds: int | None, names: tuple[str, ...], chosen: tuple[str, ...], works: tuple[str, ...]
) -> None:
    """The same work with other libraries and with fastio, the limits of disk and memory, and fastio's goals."""
    seconds = _QUICK_SECONDS if command.quick and rounds is None else math.inf
    rounds = rounds or (3 if command.quick else 5)
    command.report.mode = names[0] if len(names) == 1 else ""
    names = names or (("bert-large",) if command.quick else WORKLOADS)
    if command.quick and not chosen:
        command.report.notes.append(_LEFT_OUT)
    chosen = chosen or (compare.QUICK_PEERS if command.quick else PEERS)
    works = works or WORKS
    tools = [every.find(name) for name in chosen]
    picked, cut = room.fitting([objects.find(name) for name in names], command.parent, _files(tools, works))
    command.report.notes += [cut] if cut else []
    command.report.settings |= {"rounds": rounds, "workloads": [own.name for own in picked], "works": works}
    command.report.settings["tools"] = {peer.name: peer.settings for peer in tools}
    command.report.settings["limit"] = disk_limit.find().name

    def work(folder: Path) -> None:
        learning = tune.QUICK_ROUNDS if command.quick else warmup.MOST_ROUNDS
        plan = compare.Comparison(
            folder, rounds, picked, tools, works, learning, memory=not command.quick, seconds=seconds
        )
        with command.meter([*plan.weights(), 3.0]) as plan.tell:
            with fresh_process.paired():
                for _ in command.report.take(plan.run()):
                    pass
            try:
                command.report.findings["import_seconds"] = sorted(
                    fresh_process.import_seconds() for _ in range(min(rounds, _MOST_IMPORTS))
                )
            except fresh_process.ChildError as error:
                command.report.notes.append(f"import fastio: {describe(error)}")

    def show() -> list[ResultTable | str]:
        summaries, failures = summarise(command.report.samples), command.report.failures
        imports = command.report.findings.get("import_seconds", [])
        rows = goals.check(
            summaries, frozenset(w.name for w in picked if w.large), imports[len(imports) // 2] if imports else None
        )
        command.report.findings["goals"] = [goal.document() for goal in rows]
        command.report.tables += summary_tables.sides(
            [s for s in summaries if s.work in works], [f for f in failures if f.work in works]
        )
        command.report.tables += limit_tables.limits(summaries, {w.name: w.label for w in picked})
        command.report.tables.append(settings(tools))
        memory = {name: compare.MEMORY.get(name, name) for name in works}
        return [
            *verdict.lines(summaries),
            *verdict.tables(summaries),
            *(
                summary_tables.comparison(own.label, [s for s in summaries if s.workload == own.name], memory)
                for own in picked
            ),
        ]

    command.run(work, show)


def _files(tools: list[Peer], works: tuple[str, ...]) -> int:
    """The most files of one workload on the disk at once: at least two, since a save replaces a file."""
    loads = (
        [peer for peer in tools if not peer.unable("load", "tensor")] if {compare.COLD, compare.WARM} & {*works} else []
    )
    return max(2, sweep.files(loads))


def settings(tools: list[Peer]) -> ResultTable:
    """Each tool's version and mode."""
    rows = [[peer.name, peer.version or None, peer.settings] for peer in tools]
    note = "what a tool saves durably is synced by it, or file by file after it"
    return ResultTable("peers-settings", "How the tools are used", ("tool", "version", "settings"), rows, note=note)
