"""What ``fastio-bench offload --simulate`` finds, as tables beside what the papers say. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastio.bench.exhibit import CALIBRATED, SIMULATED, Cell, Exhibit

_GB = 1e9
_SIDES = {"FlashNeuron's V100, SSDs": "SSD", "FlashNeuron's V100, host memory": "memory"}
_PLAIN, _LINES = "plain", ("plain", "flashneuron", "flashneuron, fp16")
_SHOWN = 32  # batches from row to row
_ANSWERS = {
    "vDNN's Titan X": "vDNN, figure 11",
    "FlashNeuron's V100, SSDs": "FlashNeuron, table 3",
    "FlashNeuron's V100, host memory": "FlashNeuron, table 3",
}


def simulated(found: Mapping[str, Any]) -> list[Exhibit]:
    """The papers' machines: batches, networks, traffic of memory."""
    machines = {one["name"]: one for one in found["machines"]}
    shown = []
    for name, machine in machines.items():
        title = f"VGG-16 on {name} ({machine['memory'] >> 30} GiB), activations to {machine['channel']}"
        rows: list[list[Cell]] = [
            [one["way"], one["runs"], one["as_fast"]] for one in found.get("capacities", ()) if one["machine"] == name
        ]
        columns = ("way", "largest batch that trains*", "largest as fast as plain*")
        note = "; ".join(machine["sources"])
        shown.append(Exhibit("capacities", title, columns, rows, SIMULATED, _ANSWERS.get(name, ""), note))
    shown += _courses(found.get("courses", ()))
    heads = ("network", "batch*", "plain GB*", "moved GB*", "peak GB*", "iteration, x plain*", "the paper says")
    rows = [
        [
            one["name"],
            one["batch"],
            *(one[key] / _GB for key in ("baseline_nbytes", "moved_nbytes", "peak_nbytes")),
            "does not run" if one["slowdown"] is None else one["slowdown"],
            one["paper"],
        ]
        for one in found.get("networks", ())
    ]
    if rows:
        source = "vDNN, figures 11, 12, 14 and 15"
        shown.append(Exhibit("networks", "vDNN-all on vDNN's Titan X", heads, rows, SIMULATED, source))
    if found.get("traffic"):
        shown.append(_traffic(found["traffic"]))
    return [one for one in shown if one.rows]


def _courses(found: Sequence[Mapping[str, Any]]) -> list[Exhibit]:
    """Throughput over the batch, as far as FlashNeuron's figure has it."""
    lines = {
        one["way"] if one["way"] == _PLAIN else f"{_SIDES[one['machine']]}, {one['way']}": dict(
            zip(one["batches"], one["slowdowns"], strict=True)
        )
        for one in found
        if one["machine"] in _SIDES and one["way"] in _LINES
    }
    batches = sorted({batch for line in lines.values() for batch in line if batch % _SHOWN == 0})
    rows: list[list[Cell]] = [
        [batch, *(100 / line[batch] if batch in line else None for line in lines.values())] for batch in batches
    ]
    title = "Throughput of VGG-16 on FlashNeuron's V100, % of what it computes"
    note = (
        "a gap: no memory. That a GPU computes faster with larger batches, by which the paper's throughput rises up to "
        "the best batch, is not in the model; that it falls after that is"
    )
    columns = ("batch*", *(f"{name}*" for name in lines))
    return [Exhibit("courses", title, columns, rows, SIMULATED, "FlashNeuron, figure 8", note)]


def _traffic(found: Sequence[Mapping[str, Any]]) -> Exhibit:
    columns = ("layer", "GB/s*", "added by offloading GB/s*", "together, % of 336 GB/s*")
    rows: list[list[Cell]] = [[o["layer"], o["own"] / _GB, o["added"] / _GB, 100 * o["share"]] for o in found]
    title = "Bandwidth of the GPU's memory that VGG-16's convolutions need in forward, vDNN's Titan X"
    note = (
        "each value moved once, layers at peak rates, 12.8 GB/s of PCIe. The paper: layers rarely reach the peak, and "
        "offloading adds at most 16 GB/s, 4.7 %"
    )
    return Exhibit("traffic", title, columns, rows, SIMULATED, "vDNN, figure 13", note)


def calibrated(found: Mapping[str, Any]) -> list[Exhibit]:
    """FlashNeuron's table 3, with shares that were fitted to it."""
    columns = ("network", "plain batch*", "the paper's batch*", "share that hides (fitted)*", "calibrated batch*")
    keys = ("network", "plain_batch", "paper_batch", "hidden", "batch")
    rows = [[one[key] for key in keys] for one in found["rows"]]
    title, source, note = (
        "Batches with the best throughput",
        "FlashNeuron, table 3",
        "fitted to that table",
    )
    return [Exhibit("calibrated", title, columns, rows, CALIBRATED, source, note)]
