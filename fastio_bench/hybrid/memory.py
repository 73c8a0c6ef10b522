"""MemFerry's machines, simulated: what of the GPU's memory parameters and gradients take. Nothing is measured.

What figures 12 and 13(b) of the paper ask (sections V-B and V-D), from the timelines of
:mod:`fastio_bench.hybrid.simulated_papers`. The paper's figures have activations in them, which are in none of ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from fastio.hybrid.simulation.machines import A100, Machine
from fastio_bench.hybrid.models import ASSUMED
from fastio_bench.hybrid.simulated_papers import MEMFERRY, OFFLOADED, SETTINGS, ZERO, Simulated
from fastio_bench.papers import memferry as paper
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

_FIGURE_12 = {"BERT-base", "RoBERTa", "BERT-large", "GPT-2-medium"}
_ACTIVATIONS = (
    "the paper's peaks include activations, which are in no figure here: they make what is saved a smaller share"
)
_SOURCES = {A100.name: "MemFerry, figures 12 and 13(b)"}  # of the V100's memory the paper has no figures
_MODELS = {paper.SMALLER: ["BERT-base", "RoBERTa"], paper.GPT_2: ["GPT-2-medium"]}
"""Of a row of the paper's; those that are not here are about all networks of its figure."""


def exhibits(found: Sequence[Simulated]) -> list[ResultTable]:
    """A table a machine, and our averages beside the ones that the paper gives."""
    tables = [_memory(machine, [one for one in found if one.machine is machine]) for machine, _ in SETTINGS]
    here = [one for one in found if one.machine is A100]
    small = [one for one in here if one.network.name in _FIGURE_12]
    large = [one for one in here if one.network.name not in _FIGURE_12]
    return [*tables, _beside("12", "12", paper.SAVED, small), _beside("13b", "13(b)", paper.SAVED_BY_SIZE, large)]


def less(one: Simulated, way: str, against: str = ZERO) -> float:
    """By how many percent the way needs less of the GPU's memory than another."""
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


def _beside(slug: str, figure: str, theirs: Iterable[paper.Saved], found: Sequence[Simulated]) -> ResultTable:
    names = [one.network.name for one in found]
    rows: list[list[Cell]] = []
    for row in theirs:
        meant, against = _MODELS.get(row.models, names), MEMFERRY if row.against == MEMFERRY else ZERO
        each = [less(one, row.way, against) for one in found if one.network.name in meant]
        ours = {paper.AVERAGE: mean(each), paper.LEAST: min(each), paper.MOST: max(each)}[row.which]
        rows.append([row.way, row.models, row.which, row.against, round(ours, 1), row.percent])
    return ResultTable(
        f"hybrid-memory-{slug}",
        f"simulated, beside the paper: the GPU's memory saved, {A100.name}, {', '.join(names)}",
        ("way", "models", "which", "less than", "simulated %*", "paper %*"),
        rows,
        SIMULATED,
        f"MemFerry, figure {figure}",
        _ACTIVATIONS,
    )
