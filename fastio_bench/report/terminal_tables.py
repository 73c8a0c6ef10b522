"""What the terminal shows: tables of summaries, of goals, of answers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table
from rich.text import Text

from fastio.dicts import Explanation
from fastio_bench.harness.rounds import Failure
from fastio_bench.harness.stats import Summary
from fastio_bench.peers.goals import Goal, figures
from fastio_bench.report.fitted_table import Fitted

MIB = 1 << 20


def comparison(
    title: str, summaries: Sequence[Summary], failures: Sequence[Failure], works: Mapping[str, str]
) -> Table:
    """Tools side by side at one workload, a section for each work.

    ``works`` maps a work to that of the fresh process whose peak of memory is shown beside it (itself for loads).
    """
    table = blank(title, "work", "tool", "MB/s*", "x torch*", "spread", "CPU s*", "CPU s/GB*", "beyond MiB*", "way")
    by_task = {(s.work, s.tool): s for s in summaries}
    for work, memory in works.items():
        shown = work
        for own in (s for s in summaries if s.work == work):
            peak = by_task.get((memory, own.tool))
            table.add_row(
                shown,
                own.tool,
                f"{own.bandwidth / 1e6:,.0f}",
                _ratio(own.ratio),
                spread(own),
                f"{own.cpu_per_gb * own.nbytes / 1e9:.3f}",
                f"{own.cpu_per_gb:.2f}",
                mebibytes(peak.extra_bytes if peak else None),
                "; ".join(own.ways),
            )
            shown = ""
        for failure in failures:
            if failure.work in (work, memory):
                label = "" if failure.work == work else " (memory)"
                table.add_row(
                    shown, failure.tool + label, "-", "-", "", "-", "-", "-", Text(failure.reason, style="red")
                )
                shown = ""
        table.add_section()
    return table


def matrix(title: str, summaries: Sequence[Summary], failures: Sequence[Failure]) -> Table:
    """Bandwidth by tool, size and work, with the processor time it costs. IOef is MB/s by cores kept busy."""
    columns = ("work", "size", "tool", "MB/s*", "best*", "CPU s/GB*", "CPU busy*", "IOef*", "GPU busy*", "way")
    table = blank(title, *columns)
    tasks = [(own.work, own.workload) for own in summaries] + [(failure.work, failure.workload) for failure in failures]
    for task in dict.fromkeys(tasks):
        shown = task
        for own in summaries:
            if (own.work, own.workload) == task:
                busy = own.cpu_per_gb * own.bandwidth / 1e9
                table.add_row(
                    *shown,
                    own.tool,
                    f"{own.bandwidth / 1e6:,.0f}",
                    f"{own.best_bandwidth / 1e6:,.0f}",
                    f"{own.cpu_per_gb:.2f}",
                    f"{busy:.0%}",
                    f"{own.bandwidth / 1e6 / busy:,.0f}" if busy > 0 else "-",
                    "-" if own.gpu_busy is None else f"{own.gpu_busy:.0%}",
                    "; ".join(own.ways),
                )
                shown = ("", "")
        for failure in failures:
            if (failure.work, failure.workload) == task:
                table.add_row(*shown, failure.tool, *["-"] * 6, Text(failure.reason, style="red"))
                shown = ("", "")
        table.add_section()
    return table


def goals(rows: Iterable[Goal]) -> Table:
    """What was asked, what was measured, whether that is enough, and where the figure comes from."""
    table = blank("Goals", "work", "workload", "against", "asked*", "measured*", "", "")
    for goal in rows:
        sign = "at least" if goal.least else "at most"
        verdict = Text("met", style="green") if goal.met else Text("missed", style="bold red")
        asked, measured = (f"{figure} {goal.unit}" for figure in figures(goal.asked, goal.measured))
        table.add_row(goal.work, goal.workload, goal.against, f"{sign} {asked}", measured, verdict, goal.origin)
    return table


def answers(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Questions and their answers."""
    table = blank(title, "", "")
    table.show_header = False
    for question, answer in rows:
        table.add_row(question, answer)
    return table


def learned(rows: Iterable[tuple[str, Explanation]]) -> Table:
    """What dictionaries say: the tool in use, the fastest, how sure that is, and how many times longer others take."""
    columns = ("work", "uses now", "fastest", "sure*", "takes*", "the others take", "why")
    table = blank("What the dictionaries learned", *columns)
    for work, answer in rows:
        best, *others = answer.entries
        table.add_row(
            work,
            answer.tool,
            best.tool,
            f"{answer.confidence:.0%}",
            "-" if best.seconds is None else f"{best.seconds * 1e3:,.1f} ms",
            ", ".join(f"{other.tool} {other.relative:.2f} x" for other in others),
            answer.reason,
        )
    return table


def tools(title: str, rows: Iterable[tuple[str, bool, str]]) -> Table:
    """Tools: here, or why not and what to do."""
    table = blank(title, "tool", "", "")
    for name, available, text in rows:
        table.add_row(name, Text("yes", style="green") if available else Text("no", style="yellow"), text)
    return table


def mebibytes(nbytes: int | None) -> str:
    """Bytes in MiB, for people."""
    return "-" if nbytes is None else f"{nbytes / MIB:,.0f}"


def spread(own: Summary) -> str:
    """The least and the most ratio of any round."""
    if own.ratio_low is None or own.ratio_high is None:
        return ""
    return f"{own.ratio_low:.2f}-{own.ratio_high:.2f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def blank(title: str, *columns: str) -> Table:
    """A table; a column whose name ends with * is numbers. In a narrow terminal nothing is cut."""
    table = Fitted(title=title, title_justify="left", title_style="bold")
    for column in columns:
        table.add_column(column.rstrip("*"), justify="right" if column.endswith("*") else "left", overflow="fold")
    return table
