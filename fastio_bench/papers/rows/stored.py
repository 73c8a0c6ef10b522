"""Our figures from the documents of a results folder. Each function returns one for a document, or None. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeAlias

from fastio_bench.offload.device_ways import named
from fastio_bench.offload.settings import MODES
from fastio_bench.offload.training_ways import PLAIN, SAVE_ON_CPU, SYNCHRONOUS, TORCH
from fastio_bench.papers.beside import figure, found, over
from fastio_bench.report.documents import Document
from fastio_bench.report.table import Cell, ResultTable

Reader: TypeAlias = Callable[[Document], float | None]
_OTHERS = ("size MB*", "size MiB*", "rounds*", "disk limit*", "work")


def of_table(name: str, ours: Callable[[ResultTable], float | None]) -> Reader:
    """Apply ``ours`` to the table of that name."""

    def reader(document: Document) -> float | None:
        return next((ours(table) for table in document.tables if table.name == name), None)

    return reader


def best_over_torch(table: ResultTable) -> float | None:
    """The fastest tool's bandwidth over torch's, at the size at which that is the most. Of a paper's table as well."""
    if "torch*" not in table.columns:
        return None
    torch = table.columns.index("torch*")
    tools = [place for place, column in enumerate(table.columns) if column not in _OTHERS]
    ratios = (over(_most(row, tools), figure(row[torch])) for row in table.rows)
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def _most(row: Sequence[Cell], places: Sequence[int]) -> float | None:
    return max((one for place in places if (one := figure(row[place])) is not None), default=None)


def efficiency_over_torch(table: ResultTable) -> float | None:
    """The best tool's IOef of cached reads over torch's; the third figure of each row. Of a paper's table as well."""
    each = {str(row[0]): one for row in table.rows if (one := figure(row[3])) is not None}
    return over(max(each.values(), default=None), each.get("torch"))


def saving_over_torch(table: ResultTable) -> float | None:
    """Torch's seconds to save over fastio's, at the model at which that is the most."""
    if not {"torch s*", "fastio s*"} <= set(table.columns):
        return None
    torch, own = table.columns.index("torch s*"), table.columns.index("fastio s*")
    ratios = (over(figure(row[torch]), figure(row[own])) for row in table.rows)
    return max((ratio for ratio in ratios if ratio is not None), default=None)


def reached(way: str, column: str) -> Reader:
    """What ``tools`` says of a way of choosing, in the first of its networks' columns that ends so."""

    def ours(table: ResultTable) -> float | None:
        places = [place for place, name in enumerate(table.columns) if name.endswith(column)]
        return next((figure(row[places[0]]) for row in table.rows if places and row[0] == way), None)

    return of_table("reach", ours)


def torch_over_tuner(document: Document) -> float | None:
    """The time of feature maps by torch alone over that by the live tuner, from ``tools``."""
    torch, tuner = (reached(way, "% of best time*")(document) for way in ("torch alone", "live tuner"))
    return over(tuner, torch)


def alone_over_tuner(document: Document) -> float | None:
    """The same by the tool that alone takes the least time over that by the live tuner."""

    def fastest(table: ResultTable) -> float | None:
        place = next((at for at, name in enumerate(table.columns) if name.endswith("% of best time*")), None)
        alone = [figure(row[place]) for row in table.rows if place is not None and str(row[0]).endswith(" alone")]
        return max((share for share in alone if share is not None), default=None)

    return over(reached("live tuner", "% of best time*")(document), of_table("reach", fastest)(document))


def steps(against: str, model: str = "") -> Reader:
    """The fastest of fastio's steps in ``offload`` over another way's, plain or torch's; of any network if empty."""

    def reader(document: Document) -> float | None:
        if model and document.settings.get("model") != model:
            return None
        ratios = []
        every = [one for one in found(document, "ways") if one.get("step_s")]
        for one in every:
            other = [way for way in every if way["way"] == against and way.get("batch") == one.get("batch")]
            if other and one["way"] not in (PLAIN, TORCH, SAVE_ON_CPU):
                ratios.append(one["step_s"] / other[0]["step_s"])
        return min(ratios, default=None)

    return reader


def by_mode(mode: str, model: str) -> Reader:
    """A step of Fastensor's way by WDic ("w") or RDic ("r") over that by WRDic, of that network."""

    def reader(document: Document) -> float | None:
        if document.settings.get("model") != model:
            return None
        seconds = {one["way"]: one["step_s"] for one in found(document, "ways") if one.get("step_s")}
        return over(seconds.get(MODES[mode]), seconds.get(SYNCHRONOUS))

    return reader


def transfers(document: Document) -> float | None:
    """The share of a step that torch.save and torch.load of its feature maps take, in %."""
    ways = {one["way"]: one for one in found(document, "ways") if one.get("step_s")}
    return 100 * (1 - ways[PLAIN]["step_s"] / ways[TORCH]["step_s"]) if {PLAIN, TORCH} <= ways.keys() else None


def accuracy(document: Document) -> float | None:
    """The accuracy with activations offloaded over plain training's, in points."""
    means = {one["way"]: one["mean"] for one in found(document, "accuracy") if "mean" in one}
    plain = means.pop(PLAIN, None)
    return 100 * (max(means.values()) - plain) if means and plain is not None else None


def deepest(document: Document) -> float | None:
    """The depth that offload trains in the memory given, over plain training's."""
    depths = {one["way"]: one["depth"] for one in found(document, "depths")}
    return over(max((depth for way, depth in depths.items() if way != PLAIN), default=None), depths.get(PLAIN))


def largest(network: str, what: str) -> Reader:
    """The largest batch or depth that offload trains on the simulated device, over plain training's."""

    def reader(document: Document) -> float | None:
        every = [one for one in found(document, "largest") if (one["network"], one["what"]) == (network, what)]
        return over(every[0]["offload"], every[0]["plain"]) if every else None

    return reader


def device_memory(model: str, way: str) -> Reader:
    """The memory of a step of that network by one of fastio's ways on the simulated device, in % of a plain one's."""

    def reader(document: Document) -> float | None:
        if document.settings.get("device") != "simulated" or document.settings.get("architecture") != model:
            return None
        peaks: dict[str, list[int]] = {}
        for one in found(document, "device_steps"):
            peaks.setdefault(one["way"], []).append(one["peak_bytes"])
        plain, own = (median(peaks[name]) if name in peaks else None for name in (PLAIN, named(way)))
        return over(own, plain, 100)

    return reader


def kept(table: str, way: str) -> Reader:
    """The least share of its speed that a training keeps at the highest load, in %. ``way``: in a text of the row."""

    def ours(own: ResultTable) -> float | None:
        shares = [one for row in own.rows if way in row and (one := figure(row[-1])) is not None]
        return over(min(shares, default=None), 1.0, 100)

    return of_table(table, ours)


def delayed(way: str, percent: int = 50) -> Reader:
    """The delay of other processes' work at the highest load, of so many % of it at most, in %, from ``contend``."""

    def ours(table: ResultTable) -> float | None:
        place = table.columns.index(f"{percent}% delay, %*")
        return next((figure(row[place]) for row in reversed(table.rows) if row[1] == way), None)

    return of_table("latency", ours)


def in_order(direction: str) -> Reader:
    """How much of an iteration's writes or reads follows FlashNeuron's order of block addresses, in %, by ``store``."""

    def ours(table: ResultTable) -> float | None:
        return next(
            (figure(row[table.columns.index("in order %*")]) for row in table.rows if row[0] == direction), None
        )

    return of_table("addresses", ours)
