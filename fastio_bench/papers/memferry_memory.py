"""Simulates MemFerry's machines: the GPU memory of parameters, gradients and activations. Nothing is measured.

It answers figures 12 and 13(b) of the paper (sections V-B and V-D), from the timelines of
:mod:`fastio_bench.papers.memferry_simulated`. Activations are the networks' own, by shapes and batch; gradients that
stay on the GPU are kept there from step to step, as the paper's MemFerry keeps them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean

from fastio.hybrid.planning.costs import DHA
from fastio.hybrid.planning.plan import plan
from fastio.hybrid.simulation.machines import A100, Machine, costs
from fastio.hybrid.simulation.timeline import iterate
from fastio_bench.papers import figures
from fastio_bench.papers.memferry_networks import ASSUMED, ITEM
from fastio_bench.papers.memferry_simulated import MEMFERRY, OFFLOADED, SETTINGS, ZERO, Simulated, update_seconds
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

_FIGURE_12 = {"BERT-base", "RoBERTa", "BERT-large", "GPT-2-medium"}
_ACTIVATIONS = (
    "with activations: recomputed ones (the blocks' inputs and all of one block), as the paper counts them in section "
    "II-A, and all kept; their formula is Korthikanti et al., section 4.1, at four bytes an element"
)
_AT_MOST = (
    "nothing copied: all parameters are read in host memory, the most that any plan can save of them; matrices are "
    "then read over the link once for each tile of rows. At no loss of time only layers that touch few of their "
    "parameters stay there, the embedding above all, so MemFerry saves less than the paper's 25.4 % and 40.1 %, which "
    "are against DeepSpeed with its own buffers"
)
_BUFFER = 500_000_000 * ITEM  # bytes: DeepSpeed's "reduce_bucket_size", by default, through which gradients leave
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


def nbytes(one: Simulated, way: str, recomputed: bool = True) -> int:
    """The most GPU memory of the way: parameters, gradients and activations, in bytes."""
    return one.timelines[way].nbytes + one.network.activations(recomputed)


def less(one: Simulated, way: str, against: str = ZERO, recomputed: bool = True) -> float:
    """The percentage of the GPU's memory that the way saves over another."""
    return 100 * (1 - nbytes(one, way, recomputed) / nbytes(one, against, recomputed))


def less_than_deepspeed(one: Simulated, way: str) -> float:
    """The percentage that the way saves, recomputed, over DeepSpeed with a buffer of its default size for gradients.

    ZeRO-2 copies each gradient into it, and frees it (``ipg_buffer`` in runtime/zero/stage_1_and_2.py). The paper does
    not give its settings.
    """
    theirs = one.network.parameters * ITEM + _BUFFER + one.network.activations(recomputed=True)
    return 100 * (1 - nbytes(one, way) / theirs)


def nothing_copied(one: Simulated) -> tuple[float, float]:
    """The percentage that a plan without any copy saves over ZeRO-Offload, recomputed, and its speed over it."""
    layers = [costs(work, one.machine) for work in one.network.layers()]
    chosen = plan(layers, planner=lambda costs: [DHA] * len(costs))
    timeline = iterate(layers, chosen, update_seconds(one.machine, one.network.layers()))
    saved = one.timelines[ZERO].nbytes - timeline.nbytes
    return 100 * saved / nbytes(one, ZERO), one.timelines[ZERO].iteration_s / timeline.iteration_s


def _memory(machine: Machine, found: Iterable[Simulated]) -> ResultTable:
    rows: list[list[Cell]] = []
    for one in found:
        row: list[Cell] = [one.network.name, one.network.parameters / 1e9]
        for recomputed in (True, False):
            row.append(nbytes(one, ZERO, recomputed) / 1e9)
            row += [less(one, way, ZERO, recomputed) for way in (MEMFERRY, OFFLOADED)]
        rows.append([*row, *nothing_copied(one)])
    return ResultTable(
        f"hybrid-memory-{machine.name.partition(',')[0].lower()}",
        f"simulated: parameters, gradients and activations on the GPU, {machine.name}, with recomputation and without",
        ("network", "B*", "ZeRO-Offload GB*", "MemFerry less %*", "GO-MemFerry less %*",
         "all kept: ZeRO-Offload GB*", "all kept: MemFerry less %*", "all kept: GO-MemFerry less %*",
         "nothing copied: less %*", "nothing copied: speed x*"),
        rows,
        SIMULATED,
        _SOURCES.get(machine.name, ""),
        "; ".join((_ACTIVATIONS, _AT_MOST, ASSUMED, *machine.sources)),
    )  # fmt: skip


def _beside(slug: str, figure: str, found: Sequence[Simulated]) -> ResultTable:
    """Our averages, least or most saving beside each row of the paper's figure."""
    (theirs,) = figures.of(f"MemFerry, figure {figure}")
    names = [one.network.name for one in found]
    rows: list[list[Cell]] = []
    for way, models, which, other, percent in theirs.rows:
        meant, against = _MODELS.get(str(models), names), MEMFERRY if other == MEMFERRY else ZERO
        ours = []
        for recomputed in (True, False):
            each = [less(one, str(way), against, recomputed) for one in found if one.network.name in meant]
            ours.append(round({"average": mean(each), "least": min(each), "most": max(each)}[str(which)], 1))
        rows.append([way, models, which, other, *ours, percent])
    return ResultTable(
        f"hybrid-memory-{slug}",
        f"simulated, beside the paper: the GPU's memory saved, {A100.name}, {', '.join(names)}",
        ("way", "models", "which", "less than", "recomputed %*", "all kept %*", "paper %*"),
        rows,
        SIMULATED,
        f"MemFerry, figure {figure}",
        _ACTIVATIONS,
    )
