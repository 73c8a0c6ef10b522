"""Tables of ``fastio-bench offload --simulate``, with the papers' statements. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean
from typing import Any

from fastio_bench.papers import figures
from fastio_bench.report.table import CALIBRATED, SIMULATED, Cell, ResultTable

_GB = 1e9
_VDNN = "vdnn-all"
_SIX = ("VGG-16", (64, 128, 256))  # those of the paper's six networks whose shapes are here
_KEPT = ("peak_nbytes", "average_nbytes")
_AVERAGE = "over the layers, each in its forward or backward step, whichever holds more"
_THEIRS = {  # by policy: the names in the paper's figures 11 and 14
    _VDNN: ("vDNN-all, memory-optimal algorithms", "vDNN-all, memory-optimal algorithms"),
    "vdnn-conv": ("vDNN-conv, performance-optimal algorithms", "vDNN-conv, memory-optimal algorithms"),
    "vdnn-dyn": ("vDNN-dyn", "vDNN-dyn"),
}
_SIDES = {"FlashNeuron's V100, SSDs": "SSD", "FlashNeuron's V100, host memory": "memory"}
_PLAIN, _LINES = "plain", ("plain", "flashneuron", "flashneuron, fp16")
_SHOWN = 32  # the step of batches between rows
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
        note = "; ".join(machine["sources"])
        shown.append(ResultTable("capacities", title, columns, rows, SIMULATED, _ANSWERS.get(name, ""), note))
    shown += _courses(found.get("courses", ()))
    if found.get("networks"):
        shown += [_networks(found["networks"]), *_saved(found["networks"])]
    if found.get("traffic"):
        shown.append(_traffic(found["traffic"]))
    return [one for one in shown if one.rows]


def _networks(found: Sequence[Mapping[str, Any]]) -> ResultTable:
    """Each network by each policy. Old documents have one policy and no averages."""
    heads = ("network", "batch*", "way", "plain GB*", "moved GB*", "peak GB*", "average GB*")
    rows: list[list[Cell]] = [
        [
            one["name"],
            one["batch"],
            one.get("way", _VDNN),
            *(one[key] / _GB for key in ("baseline_nbytes", "moved_nbytes", "peak_nbytes")),
            one["average_nbytes"] / _GB if "average_nbytes" in one else None,
            "does not run" if one["slowdown"] is None else one["slowdown"],
            one["paper"],
        ]
        for one in found
    ]
    columns, source = (*heads, "iteration, x plain*", "the paper says"), "vDNN, figures 11, 12, 14 and 15"
    return ResultTable("networks", "vDNN on its Titan X", columns, rows, SIMULATED, source, f"average: {_AVERAGE}")


def _saved(found: Sequence[Mapping[str, Any]]) -> Iterator[ResultTable]:
    """Memory saved and throughput lost by each policy: our averages over VGG-16, the paper's over six networks."""
    papers = {table.name: {row[0]: row[1:] for row in table.rows} for table in figures.tables()}
    rows: list[list[Cell]] = []
    for way, (memory, speed) in _THEIRS.items():
        own = [one for one in found if one.get("way") == way and one["name"] == _SIX[0] and one["batch"] in _SIX[1]]
        if not own:
            return
        peak, average = papers["vdnn-11"][memory]
        saved = [100 * (1 - mean(one[key] / one["baseline_nbytes"] for one in own)) for key in _KEPT]
        lost = [100 * (1 - 1 / one["slowdown"]) for one in own if one["slowdown"] is not None]
        rows.append([way, saved[0], peak, saved[1], average, mean(lost) if lost else None, papers["vdnn-14"][speed][0]])
    columns = ("way", "most, less %*", "paper %*", "average, less %*", "paper %*", "throughput lost %*", "paper %*")
    title = "vDNN: memory saved and throughput lost, averages over VGG-16 at batch 64, 128 and 256"
    note = (
        "the paper's averages are over six networks, with AlexNet, OverFeat and GoogLeNet, which are left out here; "
        "its memory of vdnn-all and its throughputs but for vdnn-dyn's are with memory-optimal algorithms, which are "
        "slow, its memory of vdnn-conv with the fastest. Here convolutions have one algorithm and no workspace; "
        f"throughput is of what runs (vdnn-conv does not at batch 256); average: {_AVERAGE}"
    )
    yield ResultTable("saved", title, columns, rows, SIMULATED, "vDNN, figures 11 and 14", note)


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
