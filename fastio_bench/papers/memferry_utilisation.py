"""Simulates MemFerry's machines: GPU utilisation, the cost of reserving gradients, and the largest model.

It answers figures 10 and 11 of the paper (section V-B), from the timelines of
:mod:`fastio_bench.papers.memferry_simulated`. Nothing is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastio.hybrid.planning.plan import plan
from fastio.hybrid.simulation.machines import A100, V100, Machine, costs
from fastio.hybrid.simulation.timeline import COMPUTE, Timeline, iterate
from fastio_bench.papers.memferry_memory import nbytes
from fastio_bench.papers.memferry_networks import A100_NETWORKS, ASSUMED, Network
from fastio_bench.papers.memferry_simulated import MEMFERRY, OFFLOADED, WAYS, ZERO, Simulated, update_seconds
from fastio_bench.report.table import SIMULATED, Cell, ResultTable

_RESERVES = (0.0, 0.25, 0.5, 0.75, 1.0)
_BUSY = {"BERT-base": 63, "GPT-2-medium": 63.1}  # %, ZeRO-Offload: section I, section III-A
_BUSIER = {"GPT-2-medium": 18.5}  # %, MemFerry over DeepSpeed: section V-B
_LARGER = {ZERO: 1.0, OFFLOADED: 1.52}  # section V-B
_WAITING = (
    "reading in place counts as computing; the paper does not say at which batch and sequence BERT-base "
    "keeps the GPU busy 63 % of the time, and with those assumed here there is little to compute"
)
_V100_NBYTES = 32_000_000_000
_GPT_2 = next(network for network in A100_NETWORKS if network.name.startswith("GPT-2"))


def tables(found: Sequence[Simulated]) -> list[ResultTable]:
    """The three tables, from the results of :func:`fastio_bench.papers.memferry_simulated.every`."""
    return [
        _busy([one for one in found if one.machine is A100]),
        _reserved(),
        _largest(max((one for one in found if one.machine is V100), key=lambda one: one.network.parameters)),
    ]


def busy(timeline: Timeline) -> float:
    """The share of the iteration in which the GPU computes, reading in place included."""
    return sum(span.end_s - span.start_s for span in timeline.spans if span.lane == COMPUTE) / timeline.iteration_s


def reserved(machine: Machine, network: Network, reserve: float) -> Timeline:
    """GO-MemFerry's iteration if that share of the gradients' bytes may stay on the GPU."""
    works = network.layers()
    layers = [costs(work, machine) for work in works]
    return iterate(layers, plan(layers, gradient_reserve=reserve), update_seconds(machine, works))


def _busy(found: Sequence[Simulated]) -> ResultTable:
    rows: list[list[Cell]] = []
    for one in found:
        shares = {way: busy(one.timelines[way]) for way in WAYS}
        more = 100 * (shares[MEMFERRY] / shares[ZERO] - 1)
        name = one.network.name
        rows.append([name, *(100 * share for share in shares.values()), _BUSY.get(name), more, _BUSIER.get(name)])
    return ResultTable(
        "hybrid-busy",
        f"simulated: % of an iteration in which the GPU computes, {A100.name}",
        ("network", *(f"{way}*" for way in WAYS), "ZeRO, paper*", "MemFerry over it, more by %*", "paper %*"),
        rows,
        SIMULATED,
        "MemFerry, figure 10(a)",
        "; ".join((_WAITING, ASSUMED, *A100.sources)),
    )


def _reserved() -> ResultTable:
    rows: list[list[Cell]] = []
    for reserve in _RESERVES:
        timeline = reserved(A100, _GPT_2, reserve)
        rows.append([100 * reserve, timeline.iteration_s * 1e3, timeline.nbytes / 1e9])
    return ResultTable(
        "hybrid-reserve",
        f"simulated: GO-MemFerry as more gradients stay on the GPU, {_GPT_2.name}, {A100.name}",
        ("reserved %*", "iteration ms*", "parameters and gradients GB*"),
        rows,
        SIMULATED,
        "MemFerry, figure 10(b)",
        "the paper says that the iteration falls, and gives no numbers nor the network",
    )


def _largest(one: Simulated) -> ResultTable:
    rows: list[list[Cell]] = []
    bytes_each = {way: nbytes(one, way) / one.network.parameters for way in (ZERO, MEMFERRY, OFFLOADED)}
    for way, each in bytes_each.items():
        rows.append([way, each, _V100_NBYTES / each / 1e9, bytes_each[ZERO] / each, _LARGER.get(way)])
    return ResultTable(
        "hybrid-largest",
        f"simulated: the largest {one.network.name.rpartition(' ')[0]} on a V100 of 32 GB",
        ("way", "bytes a parameter*", "B parameters*", "x ZeRO-Offload*", "paper x*"),
        rows,
        SIMULATED,
        "MemFerry, figure 11",
        f"parameters, gradients and recomputed activations, by the bytes of {one.network.name}; nothing else",
    )
