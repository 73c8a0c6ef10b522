"""``fastio-bench weights``: weights of large language models by fastio and by other libraries."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from fastio_bench.harness.command_run import CommandRun
from fastio_bench.harness.rounds import Sample
from fastio_bench.harness.stats import group
from fastio_bench.machine import disk_limit
from fastio_bench.report.table import Cell, ResultTable
from fastio_bench.weights import models, ways
from fastio_bench.weights.options import TOOLS, WORKS
from fastio_bench.weights.runs import MEMORY, WeightRuns

_LIMITS = (disk_limit.TOOL, MEMORY)
_NOTE = (
    "seconds: medians of fresh processes in interleaved rounds. beside the best peer: the median of each round's least "
    "seconds of another library over this tool's; above 1 is faster. of the limit: the same of the limit's seconds; a "
    "conversion's is what the disk reads and writes at once. extra: the peak of memory beyond what is returned, or "
    "beyond the module. first: ms until the first tensor. read: bytes from the disk over bytes wanted."
)


def weights(
    command: CommandRun, name: str, size: int | None, rounds: int | None, works: tuple[str, ...], tools: tuple[str, ...]
) -> None:
    """Measure loads into a module, of a rank's slices, of one tensor, in a stream; saves; conversions."""
    rounds = rounds or (3 if command.quick else 5)
    model = models.find(name, size or (640_000_000 if command.quick else 2_500_000_000))
    command.report.mode = model.name
    command.report.settings |= {"rounds": rounds, "model": model.label, "nbytes": model.nbytes, "shards": models.SHARDS}
    plan = WeightRuns(Path(), rounds, model, works or WORKS, tools or TOOLS)

    def work(folder: Path) -> None:
        plan.folder = folder
        with command.meter(plan.weights()) as plan.tell:
            for _ in command.report.take(plan.run()):
                pass

    def show() -> list[ResultTable]:
        command.report.findings["calls"] = plan.details
        return [_table(work, found, plan, model) for (work, _), found in group(command.report.samples).items()]

    command.run(work, show)


def _table(work: str, found: dict[str, list[Sample]], plan: WeightRuns, model: models.Model) -> ResultTable:
    """The tools at one work."""
    rows: list[list[Cell]] = []
    theirs: dict[int, float] = {}
    limits = {sample.round: sample.seconds for tool in _LIMITS for sample in found.get(tool, [])}
    for tool, samples in found.items():
        if tool in plan.tools and not tool.startswith("fastio"):
            for sample in samples:
                theirs[sample.round] = min(sample.seconds, theirs.get(sample.round, sample.seconds))
    for tool, samples in found.items():
        own = [call for call in plan.details if (call["tool"], call["name"]) == (tool, work)]
        ratios = [theirs[sample.round] / sample.seconds for sample in samples if sample.round in theirs]
        of_limit = [limits[sample.round] / sample.seconds for sample in samples if sample.round in limits]
        extra = max((s.extra_bytes for s in samples if s.extra_bytes is not None), default=None)
        first = [call["first"] * 1e3 for call in own if "first" in call]
        rows.append(
            [
                tool,
                median(sample.seconds for sample in samples),
                median(ratios) if ratios else None,
                median(of_limit) if of_limit and tool in plan.tools else None,
                None if extra is None else extra / 1e6,
                median(first) if first else None,
                median(call["read"] for call in own) / _wanted(work, model) if own and "cold" in work else None,
            ]
        )
    columns = ("tool", "seconds*", "beside the best peer*", "of the limit*", "extra MB*", "first ms*", "read*")
    title = f"{model.label}, {model.nbytes / 1e6:.0f} MB, {models.SHARDS} shards: {work}"
    return ResultTable(work.replace(", ", "-").replace(" ", "-").replace("'", ""), title, columns, rows, note=_NOTE)


def _wanted(work: str, model: models.Model) -> float:
    """The bytes that a work wants."""
    if work.startswith(ways.SMALL):
        return 2.0 * model.shapes[model.small][0]
    if not work.startswith(ways.SLICES):
        return model.nbytes
    whole = sum(2 * shape[0] for name, shape in model.shapes.items() if len(shape) < 2)
    return (model.nbytes - whole) / models.RANKS + whole
