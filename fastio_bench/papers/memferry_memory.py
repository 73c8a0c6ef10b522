"""Simulates MemFerry's machines: the GPU memory of parameters and gradients. Nothing is measured.

It answers figures 12 and 13(b) of the paper (sections V-B and V-D), from the timelines of
:mod:`fastio_bench.papers.memferry_simulated`. The paper's figures include activations; ours do not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from fastio.hybrid.simulation.machines import A100, Machine
from fastio_bench.papers import figures
from fastio_bench.papers.memferry_networks import ASSUMED
from fastio_bench.papers.memferry_simulated import MEMFERRY, OFFLOADED, SETTINGS, ZERO, Simulated
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

_FIGURE_12 = {"BERT-base", "RoBERTa", "BERT-large", "GPT-2-medium"}
_ACTIVATIONS = (
    "the paper's peaks include activations, which are in no figure here: they make what is saved a smaller share"
)
_SOURCES = {A100.name: "MemFerry, figures 12 and 13(b)"}  # the paper has no figures of the V100's memory
_MODELS = {"the smaller models": ["BERT-base", "RoBERTa"], "GPT-2": ["GPT-2-medium"]}
"""By the name in the paper's row. Other rows are about all networks of the figure."""


def tables(found: Sequence[Simulated]) -> list[ResultTable]:
    """A table for each machine, and our averages beside the paper's."""
    tables = [_memory(machine, [one for one in found if one.machine is machine]) for machine, _ in SETTINGS]
    here = [one for one in found if one.machine is A100]
    small = [one for one in here if one.network.name in _FIGURE_12]
    large = [one for one in here if one.network.name not in _FIGURE_12]
    return [*tables, _beside("12", "12", small), _beside("13b", "13(b)", large)]


def less(one: Simulated, way: str, against: str = ZERO) -> float:
    """The percentage of the GPU's memory that the way saves over another."""
    return 100 * (1 - one.timelines[way].nbytes / one.timelines[against].nbytes)


def _memory(machine: Machine, found: Iterable[Simulated]) -> ResultTable:
    rows: list[list[Cell]] = []
    for one in found:
        sizes = {way: one.timelines[way].nbytes / 1e9 for way in (ZERO, MEMFERRY, OFFLOADED)}
        saved = {way: less(one, way) for way in (MEMFERRY, OFFLOADED)}
        shown = (sizes[MEMFERRY], saved[MEMFERRY], sizes[OFFLOADED], saved[OFFLOADED])
        rows.append([one.network.name, one.network.parameters / 1e9, sizes[ZERO], *shown])
    return ResultTable(
        f"hybrid-memory-{machine.name.partition(',')[0].lower()}",
        f"simulated: parameters and gradients on the GPU, {machine.name}, GB (activations are in no figure)",
        ("network", "B*", "ZeRO-Offload*", "MemFerry*", "less %*", "GO-MemFerry*", "less %*"),
        rows,
        SIMULATED,
        _SOURCES.get(machine.name, ""),
        "; ".join((ASSUMED, *machine.sources)),
    )


def _beside(slug: str, figure: str, found: Sequence[Simulated]) -> ResultTable:
    """Our averages, least or most saving beside each row of the paper's figure."""
    (theirs,) = figures.of(f"MemFerry, figure {figure}")
    names = [one.network.name for one in found]
    rows: list[list[Cell]] = []
    for way, models, which, other, percent in theirs.rows:
        meant, against = _MODELS.get(str(models), names), MEMFERRY if other == MEMFERRY else ZERO
        each = [less(one, str(way), against) for one in found if one.network.name in meant]
        ours = {"average": mean(each), "least": min(each), "most": max(each)}[str(which)]
        rows.append([way, models, which, other, round(ours, 1), percent])
    return ResultTable(
        f"hybrid-memory-{slug}",
        f"simulated, beside the paper: the GPU's memory saved, {A100.name}, {', '.join(names)}",
        ("way", "models", "which", "less than", "simulated %*", "paper %*"),
        rows,
        SIMULATED,
        f"MemFerry, figure {figure}",
        _ACTIVATIONS,
    )
