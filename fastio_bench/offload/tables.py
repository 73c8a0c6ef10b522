"""What ``fastio-bench offload`` shows in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from fastio_bench.harness.rounds import Failure
from fastio_bench.offload.accuracy import Accuracy
from fastio_bench.offload.depth import Deepest
from fastio_bench.offload.networks import Network
from fastio_bench.offload.simulated_papers import TITAN_X, Calibrated, Capacity, Machine
from fastio_bench.offload.summary import Summary
from fastio_bench.report.terminal_tables import blank, mebibytes

_GB = 1e9


def training(title: str, summaries: Sequence[Summary], failures: Sequence[Failure]) -> Table:
    """Ways of training side by side, each with its batch where there are several."""
    batches = {failure: failure.workload.rpartition(", ")[2] for failure in failures}
    several = len({f"batch {own.batch}" for own in summaries} | {*batches.values()}) > 1
    columns = ("way", "step*", "x plain*", "spread", "CPU*", "peak RSS MiB*", "gradients", "loss*")
    shown = blank(title, *columns)
    for own in summaries:
        shown.add_row(
            f"{own.way}, batch {own.batch}" if several else own.way,
            _milliseconds(own.step_s),
            _ratio(own.ratio),
            "" if own.ratio_low is None or own.ratio_high is None else f"{own.ratio_low:.2f}-{own.ratio_high:.2f}",
            _milliseconds(own.cpu_s),
            mebibytes(own.peak_bytes),
            "same bits" if own.same_gradients else f"off by {own.difference:.1e}",
            f"{own.loss:.6f}",
        )
    for failure in failures:
        way = f"{failure.tool}, {batches[failure]}" if several else failure.tool
        shown.add_row(way, *["-"] * (len(columns) - 3), Text(failure.reason, style="red"), "-")
    return shown


def transfers(summaries: Sequence[Summary]) -> Table:
    """What fastio says that it moved, a step."""
    columns = ("way", "tier", "written MiB*", "read MiB*", "stalled*", "predicted*", "actual*", "plan")
    shown, several = blank("Transfers, a step", *columns), len({own.batch for own in summaries}) > 1
    for own in summaries:
        if own.moved is None:
            continue
        iteration = (own.moved.stalled_s, own.moved.predicted_s, own.moved.actual_s)
        rest = [*map(_milliseconds, iteration), own.moved.status or "-"]
        for tier, traffic in own.moved.tiers.items():
            sizes = (mebibytes(round(traffic[key])) for key in ("written_bytes", "read_bytes"))
            shown.add_row(f"{own.way}, batch {own.batch}" if several else own.way, tier, *sizes, *rest)
            rest = [""] * len(rest)
    return shown


def depths(title: str, found: Iterable[Deepest]) -> Table:
    """The largest depths under a limit of memory."""
    shown = blank(title, "way", "largest depth that trains*", "smallest that does not*", "which says")
    for one in found:
        fails_at = f"{one.fails_at:,}" if one.reason and one.fails_at else "-"
        shown.add_row(one.way, f"{one.depth:,}", fails_at, one.reason)
    return shown


def accuracies(title: str, found: Iterable[Accuracy]) -> Table:
    """Accuracy over seeds."""
    shown = blank(title, "way", "mean*", "deviation*", "each seed")
    for one in found:
        each = ", ".join(f"{score:.4f}" for score in one.scores)
        shown.add_row(one.way, f"{one.mean:.4f}", f"{one.spread:.4f}", each)
    return shown


def capacities(machine: Machine, found: Iterable[Capacity]) -> Table:
    """The largest batches on a paper's machine."""
    title = f"simulated: VGG-16 on {machine.name} ({machine.memory >> 30} GiB), activations to {machine.channel}"
    shown = blank(title, "way", "largest batch that trains*", "largest as fast as plain*")
    for one in found:
        shown.add_row(one.way, f"{one.runs:,}", f"{one.as_fast:,}")
    shown.caption = "; ".join(machine.sources)
    return shown


def networks(found: Iterable[Network]) -> Table:
    """vDNN's networks."""
    columns = (
        "network",
        "batch*",
        "way",
        "plain GB*",
        "moved GB*",
        "peak GB*",
        "average GB*",
        "iteration, x plain*",
        "the paper says",
    )
    shown = blank(f"simulated: vDNN on {TITAN_X.name}, without convolutions' workspaces", *columns)
    for one in found:
        sizes = (one.baseline_nbytes, one.moved_nbytes, one.peak_nbytes, one.average_nbytes)
        figures = (f"{nbytes / _GB:.1f}" for nbytes in sizes)
        slowdown = "does not run" if one.slowdown is None else f"{one.slowdown:.2f}"
        shown.add_row(one.name, str(one.batch), one.way, *figures, slowdown, one.paper)
    return shown


def calibrated(found: Iterable[Calibrated]) -> Table:
    """FlashNeuron's table 3."""
    columns = ("network", "plain batch*", "the paper's batch*", "share that hides (fitted)*", "calibrated batch*")
    shown = blank("calibrated, not predicted: FlashNeuron's table 3", *columns)
    for one in found:
        shown.add_row(one.network, str(one.plain_batch), str(one.paper_batch), f"{one.hidden:.2f}", str(one.batch))
    return shown


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:,.0f} ms"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
