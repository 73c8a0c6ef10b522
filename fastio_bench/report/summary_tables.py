"""Tables of summaries: works side by side, and every figure. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary
from fastio_bench.report.table import Cell, ResultTable

_MIB = 1 << 20


def works(summaries: Iterable[Summary | Failure]) -> list[str]:
    """The measured works, in order."""
    return list(dict.fromkeys(summary.work for summary in summaries))


def tools(summaries: Iterable[Summary | Failure]) -> list[str]:
    """The tools that took part, in order."""
    return list(dict.fromkeys(summary.tool for summary in summaries))


def is_sweep(summaries: Sequence[Summary]) -> bool:
    """Whether these are several sizes of one tensor, which can be drawn over the size."""
    sizes = {summary.nbytes for summary in summaries}
    return len(sizes) > 1 and all(summary.workload.startswith("tensor-") for summary in summaries)


def size(nbytes: int) -> str:
    """Bytes in MiB as text, as in the papers' tables."""
    return f"{nbytes / _MIB:,.6g}" if nbytes < 1000 * _MIB else f"{nbytes / _MIB:,.0f}"


def busy(summary: Summary) -> float:
    """The number of cores that the work kept busy."""
    return summary.cpu_per_gb * summary.bandwidth / 1e9


def io_efficiency(summary: Summary) -> float | None:
    """IOef of the Fastensor paper (section 3.3): MB/s over the utilisation, here in cores. None if that is 0."""
    used = busy(summary)
    return summary.bandwidth / 1e6 / used if used > 0 else None


def sides(summaries: Sequence[Summary], failures: Sequence[Failure]) -> list[ResultTable]:
    """For each workload, works side by side: a row for each tool, with MB/s and the ratio to torch's.

    A tool that failed has "failed", one that took no part a gap.
    """
    shown = []
    tried: list[Summary | Failure] = [*summaries, *(failure for failure in failures if not failure.refused)]
    for workload in dict.fromkeys(one.workload for one in tried):
        own = [one for one in tried if one.workload == workload]
        named = works(own)
        figures = {(one.tool, one.work): _beside(one) for one in own}  # a failure replaces earlier figures
        rows: list[list[Cell]] = [[tool, *(figures.get((tool, work)) for work in named)] for tool in tools(own)]
        title = f"{workload}, MB/s (x torch)"
        shown.append(ResultTable(f"{workload} side by side", title, ("tool", *(f"{work}*" for work in named)), rows))
    return shown


def _beside(summary: Summary | Failure) -> str:
    if isinstance(summary, Failure):
        return "failed"
    bandwidth = f"{summary.bandwidth / 1e6:,.0f}"
    return bandwidth if summary.ratio is None else f"{bandwidth} ({summary.ratio:.2f})"


def comparison(title: str, summaries: Sequence[Summary], works: Mapping[str, str]) -> ResultTable:
    """Tools side by side at one workload.

    ``works`` maps each work to the one whose peak of memory is shown with it: a load in a fresh process for a load.
    """
    peaks = {(own.work, own.tool): own.extra_bytes for own in summaries}
    rows = [
        replace(own, extra_bytes=peaks.get((memory, own.tool)))
        for work, memory in works.items()
        for own in summaries
        if own.work == work
    ]
    return _figures(title, rows, ("workload", "rounds*", "best*", "CPU busy %*", "IOef*", "GPU busy %*"))


def matrix(title: str, summaries: Sequence[Summary]) -> ResultTable:
    """Bandwidth by work, size and tool, with the processor time that it costs."""
    tasks = {(own.work, own.workload): None for own in summaries}
    rows = [own for task in tasks for own in summaries if (own.work, own.workload) == task]
    return _figures(title, rows, ("rounds*", "x torch*", "spread", "beyond MiB*"))


def figures(summaries: Sequence[Summary]) -> ResultTable:
    """Every figure of every summary."""
    return _figures("Every figure", summaries, ())


def spread(own: Summary) -> str | None:
    """The least and the most ratio of any round, None where there is no ratio."""
    low, high = own.ratio_low, own.ratio_high
    return None if low is None or high is None else f"{low:.2f}-{high:.2f}"


def of_rounds(summaries: Iterable[Summary]) -> str:
    """What the figures are of: medians of so many rounds, or single calls."""
    counts = sorted({own.rounds for own in summaries})
    if not counts or counts[-1] == 1:
        return "one round: what each call took, once; run more rounds to tell a difference from chance"
    least = "" if counts[0] == counts[-1] else f"{counts[0]} to "
    single = "; of one round it is what the call took, once" if counts[0] == 1 else ""
    return f"medians of {least}{counts[-1]} rounds{single}; best is the fastest, spread the least and most ratio of any"


def _figures(title: str, summaries: Sequence[Summary], left_out: Sequence[str]) -> ResultTable:
    """A row for each summary, without the columns ``left_out`` and those that hold nothing."""
    columns = (
        *("work", "workload", "tool", "rounds*", "MB/s*", "best*", "x torch*", "spread", "CPU s/GB*", "CPU busy %*"),
        *("IOef*", "GPU busy %*", "beyond MiB*", "way"),
    )
    rows: list[list[Cell]] = []
    for own in summaries:
        rows.append(
            [
                own.work,
                own.workload,
                own.tool,
                own.rounds,
                own.bandwidth / 1e6,
                own.best_bandwidth / 1e6,
                own.ratio,
                spread(own),
                own.cpu_per_gb,
                busy(own) * 100,
                io_efficiency(own),
                None if own.gpu_busy is None else own.gpu_busy * 100,
                None if own.extra_bytes is None else own.extra_bytes / _MIB,
                "; ".join(own.ways) or None,
            ]
        )
    kept = [
        place
        for place, column in enumerate(columns)
        if column not in left_out and any(row[place] is not None for row in rows)
    ]
    return ResultTable(
        "figures",
        title,
        [columns[place] for place in kept],
        [[row[place] for place in kept] for row in rows],
        note=of_rounds(summaries),
    )


def failures(failed: Sequence[Failure]) -> ResultTable:
    """The failures: a row for each tool and reason."""
    groups: dict[tuple[str, str], list[Failure]] = {}
    for one in failed:
        groups.setdefault((one.tool, one.reason), []).append(one)
    rows: list[list[Cell]] = [
        [tool, len(own), _distinct(one.work for one in own), _distinct(one.workload for one in own), reason]
        for (tool, reason), own in groups.items()
    ]
    return ResultTable("failures", "Failed", ("tool", "times*", "work", "workload", "why"), rows)


def _distinct(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
