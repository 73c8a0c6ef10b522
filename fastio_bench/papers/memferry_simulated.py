"""Simulates MemFerry's machines: fastio's planners and timeline beside ZeRO-Offload's schedule. Nothing is measured.

Costs are a roofline over the networks' bytes and operations. The update moves seven values of four bytes a parameter
(parameter, gradient and two moments read, three of them written) through host memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fastio.hybrid.planning.plan import PlannerName, plan
from fastio.hybrid.simulation.machines import A100, V100, Machine, Work, costs
from fastio.hybrid.simulation.timeline import Timeline, iterate
from fastio_bench.papers.memferry_networks import A100_NETWORKS, ASSUMED, ITEM, V100_NETWORKS, Network
from fastio_bench.report.table import SIMULATED, ResultTable

ZERO, MEMFERRY, OFFLOADED, OPTIMAL = WAYS = ("ZeRO-Offload", "MemFerry", "GO-MemFerry", "optimal")
SETTINGS = ((A100, A100_NETWORKS), (V100, V100_NETWORKS))
_SOURCES = {A100.name: "MemFerry, figures 9 and 13(a)", V100.name: "MemFerry, figure 11"}
_MOVED = 7 * 4  # bytes of host memory that the update of a parameter moves


@dataclass(frozen=True)
class Simulated:
    """One network on one machine: every way's iteration, by name."""

    machine: Machine
    network: Network
    timelines: dict[str, Timeline]
    in_place: int
    late: int

    def speed_up(self, way: str) -> float:
        """Over ZeRO-Offload."""
        return self.timelines[ZERO].iteration_s / self.timelines[way].iteration_s


def simulated(machine: Machine, network: Network) -> Simulated:
    """Simulate the network on the machine, by all ways."""
    works = network.layers()
    layers = [costs(work, machine) for work in works]
    update_s = update_seconds(machine, works)
    planned = plan(layers)

    def run(planner: PlannerName, reserve: float = 1.0) -> Timeline:
        chosen = plan(layers, planner=planner, gradient_reserve=reserve)
        return iterate(layers, chosen, update_s, update_waits=planner == "zero-offload")

    timelines = {
        ZERO: run("zero-offload"),
        MEMFERRY: run("memferry"),
        OFFLOADED: run("memferry", reserve=0.0),
        OPTIMAL: run("optimal"),
    }
    return Simulated(machine, network, timelines, planned.modes.count("DHA"), planned.modes.count("DFGB"))


_MODES = "DHA: layers read in host memory; DFGB: read there in forward, copied before backward; all others are copied"


def update_seconds(machine: Machine, works: Sequence[Work]) -> list[float]:
    """The seconds of each layer's update on the CPU."""
    return [work.nbytes / ITEM * _MOVED / machine.update_bandwidth for work in works]


def every() -> list[Simulated]:
    """The paper's networks on its machines."""
    return [simulated(machine, network) for machine, networks in SETTINGS for network in networks]


def tables(found: Iterable[Simulated]) -> list[ResultTable]:
    """The tables of speed, one for each machine, with their sources."""
    tables = []
    for machine, _ in SETTINGS:
        own = [one for one in found if one.machine is machine]
        name = machine.name.partition(",")[0].lower()
        note = "; ".join((ASSUMED, *machine.sources, _MODES))
        tables.append(
            ResultTable(
                f"hybrid-speed-{name}",
                f"simulated: an iteration on {machine.name}, and its speed over ZeRO-Offload",
                ("network", "B*", "ZeRO ms*", *(f"{way} x*" for way in WAYS[1:]), "paper x*", "DHA*", "DFGB*"),
                [_speed(one) for one in own],
                SIMULATED,
                _SOURCES[machine.name],
                note,
            )
        )
    return tables


def _speed(one: Simulated) -> list[str | float]:
    least, most = one.network.paper
    shown = f"{least:.2f}" if least == most else f"{least:.2f} to {most:.2f}"
    speeds = [round(one.speed_up(way), 3) for way in WAYS[1:]]
    milliseconds = one.timelines[ZERO].iteration_s * 1e3
    return [one.network.name, one.network.parameters / 1e9, milliseconds, *speeds, shown, one.in_place, one.late]
