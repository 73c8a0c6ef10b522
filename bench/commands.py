"""The subcommands of ``fastio-bench``: options in, progress meanwhile, tables or JSON out."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import fastio
from fastio import registry
from fastio.bench import compare, fresh, goals, limit, peers, sweep, tables, tune, warmup, workloads
from fastio.bench import doctor as doctors
from fastio.bench.conduct import Conduct, common
from fastio.bench.offload_command import offload
from fastio.bench.rounds import describe
from fastio.bench.stats import summarise

_NAMES = [workload.name for workload in workloads.standard()]
_MOST_IMPORTS = 9
_PEERS = [peer.name for peer in peers.every()]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="fastio")
def cli() -> None:
    """What fastio and its peers reach on this machine. Figures are medians of interleaved rounds, MB are 10^6 bytes."""


cli.add_command(offload)


@cli.command()
@common
def doctor(conduct: Conduct) -> None:
    """What is here and what is not, the path that bytes really take, and the limit of the disk."""

    def work(folder: Path) -> None:
        with conduct.meter([1.0, 2.0, 2.0, 10.0]) as meter:
            steps: list[tuple[str, float, Any]] = [
                ("machine", 1.0, doctors.system),
                ("tools", 2.0, lambda folder: doctors.tool_rows()),
                ("ways", 2.0, doctors.ways),
            ]
            for name, weight, ask in steps:
                meter(name, 0)
                rows = conduct.report.findings[name] = ask(folder)
                table = tables.tools if name == "tools" else tables.answers
                conduct.show(table(_TITLES[name], rows))
                meter(name, weight)
            meter("limit of the disk", 0)
            rounds = 2 if conduct.quick else doctors.LIMIT_ROUNDS
            for _ in conduct.report.take(doctors.disk(folder, rounds)):
                meter("limit of the disk", 10.0 / rounds / 2)
        summaries, failures = summarise(conduct.report.samples), conduct.report.failures
        conduct.show(tables.matrix("Limit of the disk, past the page cache", summaries, failures))

    conduct.run(work)


_TITLES = {"machine": "Machine", "tools": "Tools", "ways": 'The way bytes take here (policy="auto", 49 MiB)'}


@cli.command()
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 5, with --quick 3.")
@click.option("--device", default="cpu", show_default=True, help="Where the tensors lie: cpu, cuda, cuda:1, ...")
@click.option(
    "--tool", "chosen", multiple=True, help="Only this tool; may be repeated.  [default: all that dictionaries pick]"
)
@common
def io(conduct: Conduct, rounds: int | None, device: str, chosen: tuple[str, ...]) -> None:
    """Bandwidth by tool, size, write and read, cold and warm, and what it costs in processor time."""
    rounds = rounds or (3 if conduct.quick else 5)
    kind = device.partition(":")[0]
    used: list[peers.Peer] = []
    for status in fastio.tools():
        tool = registry.find(status.name)
        if chosen and status.name not in chosen:
            continue
        if tool.transport is None:
            conduct.report.notes.append(f"{tool.name}: {tool.reason}; {tool.cure}".rstrip("; "))
        elif kind in status.devices and (chosen or tool.transport.capabilities.automatic):
            used.append(peers.find(f"{peers.TOOL}{tool.name}", device))
    if not used:
        raise click.UsageError(f"no such tool here for {device}; there are {', '.join(s.name for s in fastio.tools())}")
    kept, cut = sweep.fitting(sweep.QUICK_BATCHES if conduct.quick else sweep.BATCHES, conduct.parent)
    conduct.report.notes += [cut] if cut else []
    if kind == "cpu":
        conduct.report.notes.append("GPU utilisation: the tensors lie in host memory, no GPU takes part")
    conduct.report.settings |= {"rounds": rounds, "device": device, "tools": [tool.label for tool in used]}

    def work(folder: Path) -> None:
        plan = sweep.Sweep(folder, rounds, kept, used, device)
        with conduct.meter(plan.weights()) as plan.tell:
            for _ in conduct.report.take(plan.run()):
                pass

    def show() -> list[Any]:
        return [tables.matrix("fastio's tools", summarise(conduct.report.samples), conduct.report.failures)]

    conduct.run(work, show)


@cli.command(name="peers")
@click.option("--rounds", type=click.IntRange(1), help="Rounds; 5, with --quick 3.")
@click.option("--workload", "names", multiple=True, type=click.Choice(_NAMES), help="Only this; may be repeated.")
@click.option("--tool", "chosen", multiple=True, type=click.Choice(_PEERS), help="Only this; may be repeated.")
@click.option("--work", "works", multiple=True, type=click.Choice(compare.WORKS), help="Only this; may be repeated.")
@common
def peers_(
    conduct: Conduct, rounds: int | None, names: tuple[str, ...], chosen: tuple[str, ...], works: tuple[str, ...]
) -> None:
    """The same work with torch, safetensors, numpy, DCP, DALI and fastio, beside fastio's goals."""
    rounds = rounds or (3 if conduct.quick else 5)
    names = names or (("bert-large",) if conduct.quick else tuple(_NAMES))
    chosen = chosen or (compare.QUICK_PEERS if conduct.quick else tuple(_PEERS))
    works = works or compare.WORKS
    picked = [workloads.find(name) for name in names]
    conduct.report.settings |= {"rounds": rounds, "workloads": names, "tools": chosen, "works": works}
    conduct.report.settings["limit"] = limit.find().name

    def work(folder: Path) -> None:
        tools = [peers.find(name) for name in chosen]
        learning = tune.QUICK_ROUNDS if conduct.quick else warmup.MOST_ROUNDS
        plan = compare.Comparison(folder, rounds, picked, tools, works, learning, memory=not conduct.quick)
        with conduct.meter([*plan.weights(), 3.0]) as plan.tell:
            for _ in conduct.report.take(plan.run()):
                pass
            try:
                conduct.report.findings["import_seconds"] = sorted(
                    fresh.import_seconds() for _ in range(min(rounds, _MOST_IMPORTS))
                )
            except fresh.ChildError as error:
                conduct.report.notes.append(f"import fastio: {describe(error)}")

    def show() -> list[Any]:
        summaries = summarise(conduct.report.samples)
        imports = conduct.report.findings.get("import_seconds", [])
        rows = goals.check(
            summaries, frozenset(w.name for w in picked if w.large), imports[len(imports) // 2] if imports else None
        )
        conduct.report.findings["goals"] = [goal.document() for goal in rows]
        return [
            *(
                tables.comparison(
                    workload.label,
                    [s for s in summaries if s.workload == workload.name],
                    [f for f in conduct.report.failures if f.workload == workload.name],
                    {name: compare.MEMORY.get(name, name) for name in works},
                )
                for workload in picked
            ),
            tables.goals(rows),
        ]

    conduct.run(work, show)


@cli.command(name="tune")
@click.option(
    "--rounds", type=click.IntRange(1), help=f"Most rounds; {warmup.MOST_ROUNDS}, with --quick {tune.QUICK_ROUNDS}."
)
@common
def tune_(conduct: Conduct, rounds: int | None) -> None:
    """Fill and keep this machine's dictionaries, by saving and loading all sizes with policy="auto"."""
    rounds = rounds or (tune.QUICK_ROUNDS if conduct.quick else warmup.MOST_ROUNDS)
    kept, cut = sweep.fitting(tune.QUICK_BATCHES if conduct.quick else tune.BATCHES, conduct.parent)
    conduct.report.notes += [cut] if cut else []
    picked = kept if conduct.quick else [*kept, workloads.small_tensors()]
    conduct.report.settings |= {"rounds": rounds, "workloads": [workload.name for workload in picked]}

    def work(folder: Path) -> None:
        plan = tune.Tuning(folder, rounds, picked)
        with conduct.meter(plan.weights()) as plan.tell:
            plan.run()

    def show() -> list[Any]:
        rows = tune.learned(conduct.parent, picked)
        conduct.report.findings["learned"] = [{"work": work, **asdict(answer)} for work, answer in rows]
        return [tables.learned(rows)]

    conduct.run(work, show)
