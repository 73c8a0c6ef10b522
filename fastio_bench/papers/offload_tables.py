"""Tables of ``fastio-bench offload --simulate``, with the papers' statements. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastio_bench.papers import figures
from fastio_bench.report.table import CALIBRATED, SIMULATED, Cell, ResultTable

_GB = 1e9
_VDNN = "vdnn-all"
_THEIRS = {  # by policy: the rows of the paper's figures 11 and 14
    "vdnn-all (m)": ("vDNN-all, memory-optimal algorithms",) * 2,
    "vdnn-all (p)": ("vDNN-all, performance-optimal algorithms", ""),
    "vdnn-conv (m)": ("", "vDNN-conv, memory-optimal algorithms"),
    "vdnn-conv (p)": ("vDNN-conv, performance-optimal algorithms", ""),
    "vdnn-dyn": ("vDNN-dyn", "vDNN-dyn"),
}
_SIDES = {"FlashNeuron's V100, SSDs": "SSD", "FlashNeuron's V100, host memory": "memory"}
_PLAIN, _LINES = "plain", ("plain", "flashneuron", "flashneuron, fp16")
_SHOWN = 32  # the step of batches between rows
_MODELS = "vdnn-*: with gradients and workspaces layer by layer; the others: no workspaces, so at most so many"
_ANSWERS = {
    "vDNN's Titan X": "vDNN, figure 11",
    "FlashNeuron's V100, SSDs": "FlashNeuron, table 3",
    "FlashNeuron's V100, host memory": "FlashNeuron, table 3",
}


def simulated(found: Mapping[str, Any]) -> list[ResultTable]:
    """The papers' machines: batches, networks, traffic of memory."""
    machines = {one["name"]: one for one in found["machines"]}
    shown = []
    for name, machine in machines.items():
        title = f"VGG-16 on {name} ({machine['memory'] >> 30} GiB), activations to {machine['channel']}"
        rows: list[list[Cell]] = [
            [one["way"], one["runs"], one["as_fast"]] for one in found.get("capacities", ()) if one["machine"] == name
        ]
        columns = ("way", "largest batch that trains*", "largest as fast as plain*")
        models = _MODELS if any(str(row[0]).startswith("vdnn-") for row in rows) else ""
        note = "; ".join(filter(None, (models, *machine["sources"])))
        shown.append(ResultTable("capacities", title, columns, rows, SIMULATED, _ANSWERS.get(name, ""), note))
    shown += _courses(found.get("courses", ()))
    if found.get("networks"):
        shown.append(_networks(found["networks"]))
    if found.get("saved"):
        shown.append(_saved(found["saved"]))
    if found.get("traffic"):
        shown.append(_traffic(found["traffic"]))
    return [one for one in shown if one.rows]


def _networks(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Each network by each policy. Old documents have one policy, and nothing of what vDNN manages."""
    heads = ("network", "batch*", "way", "plain GB*", "moved GB*", "peak GB*", "managed, most GB*", "average GB*")
    rows: list[list[Cell]] = [
        [
            one["name"],
            one["batch"],
            one.get("way", _VDNN),
            *(one[key] / _GB for key in ("baseline_nbytes", "moved_nbytes", "peak_nbytes")),
            *(one[key] / _GB if "most_nbytes" in one else None for key in ("most_nbytes", "average_nbytes")),
            "does not run" if one["slowdown"] is None else one["slowdown"],
            one["paper"],
        ]
        for one in found
    ]
    columns, source = (*heads, "iteration, x plain*", "the paper says"), "vDNN, figures 11, 12, 14 and 15"
    note = "peak: of everything; managed: of the layers that extract features; average: over their steps"
    return ResultTable("networks", "vDNN on its Titan X", columns, rows, SIMULATED, source, note)


def _saved(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Memory saved and throughput lost by each policy, averages over vDNN's six networks."""
    papers = {table.name: {row[0]: row[1:] for row in table.rows} for table in figures.tables()}
    rows: list[list[Cell]] = []
    for one in found:
        memory, speed = _THEIRS[one["way"]]
        peak, average = papers["vdnn-11"].get(memory, (None, None))
        slower = papers["vdnn-14"].get(speed, (None,))[0]
        rows.append([one["way"], one["most"], peak, one["average"], average, one["lost"], slower])
    columns = ("way", "most, less %*", "paper %*", "average, less %*", "paper %*", "throughput lost %*", "paper %*")
    title = "vDNN: memory saved and throughput lost, averages over its six networks"
    note = (
        "(m): memory-optimal, (p): performance-optimal algorithms; of what vDNN manages, the layers that extract "
        "features, over a network-wide allocation with (p); throughput lost with (m) is fitted to the paper's"
    )
    return ResultTable("saved", title, columns, rows, SIMULATED, "vDNN, figures 11 and 14", note)


def _courses(found: Sequence[Mapping[str, Any]]) -> list[ResultTable]:
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
    return [ResultTable("courses", title, columns, rows, SIMULATED, "FlashNeuron, figure 8", note)]


def _traffic(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    columns = ("layer", "GB/s*", "added by offloading GB/s*", "together, % of 336 GB/s*")
    rows: list[list[Cell]] = [[o["layer"], o["own"] / _GB, o["added"] / _GB, 100 * o["share"]] for o in found]
    title = "Bandwidth of the GPU's memory that VGG-16's convolutions need in forward, vDNN's Titan X"
    note = (
        "each value moved once, layers at peak rates, 12.8 GB/s of PCIe. The paper: layers rarely reach the peak, and "
        "offloading adds at most 16 GB/s, 4.7 %"
    )
    return ResultTable("traffic", title, columns, rows, SIMULATED, "vDNN, figure 13", note)


def calibrated(found: Mapping[str, Any]) -> list[ResultTable]:
    """FlashNeuron's table 3, with the shares fitted to it."""
    columns = ("network", "plain batch*", "the paper's batch*", "share that hides (fitted)*", "calibrated batch*")
    keys = ("network", "plain_batch", "paper_batch", "hidden", "batch")
    rows = [[one[key] for key in keys] for one in found["rows"]]
    title, source, note = (
        "Batches with the best throughput",
        "FlashNeuron, table 3",
        "fitted to that table",
    )
    return [ResultTable("calibrated", title, columns, rows, CALIBRATED, source, note)]
