"""Tables of both sides' losses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from fastio_bench.contend.contention import LEVELS, STEP, Call
from fastio_bench.contend.training import WAYS
from fastio_bench.machine.bandwidth_loads import chunk_seconds
from fastio_bench.report.table import Cell, ResultTable

FIGURE_12, FIGURE_13, TABLE_4 = "FlashNeuron, figure 12", "FlashNeuron, figure 13", "FlashNeuron, table 4"
_SHARES = (0.50, 0.95, 0.99)


@dataclass(frozen=True, slots=True)
class Losses:
    """One tool at one work beside load processes that were to take the share ``level`` of the memory bandwidth.

    ``seconds`` is the median of the calls. ``kept`` is the tool's speed over its speed without load, ``loads_kept`` the
    load processes' pace over their pace right before; both are medians of the rounds' ratios, None without a reference.
    """

    work: str
    tool: str
    level: float
    seconds: float
    kept: float | None
    loads_kept: float | None


def losses(calls: Iterable[Call]) -> list[Losses]:
    """The losses of every work, tool and level, in their order."""
    groups: dict[tuple[str, str, float], list[Call]] = {}
    for call in calls:
        groups.setdefault((call.work, call.tool, call.level), []).append(call)
    found = []
    for (work, tool, level), own in groups.items():
        free = {call.round: call.seconds for call in groups.get((work, tool, 0.0), ())}
        kept = [free[call.round] / call.seconds for call in own if call.round in free]
        loads = [
            call.beside.bandwidth / call.alone.bandwidth
            for call in own
            if call.alone is not None and call.beside is not None and call.alone.bandwidth
        ]
        seconds = median(call.seconds for call in own)
        found.append(
            Losses(work, tool, level, seconds, median(kept) if kept else None, median(loads) if loads else None)
        )
    return found


def tables(calls: Sequence[Call], bandwidth: float, remark: str) -> list[ResultTable]:
    """The tables of a run. ``remark`` is the note on this machine."""
    if not calls:
        return []
    found = losses(calls)
    return [
        _hogs_alone(calls, bandwidth, remark),
        *_kept(calls, found, remark),
        _hogs_beside(found, remark),
        _latency(calls, remark),
    ]


def _hogs_alone(calls: Sequence[Call], bandwidth: float, remark: str) -> ResultTable:
    rows: list[list[Cell]] = [["all they can", None, bandwidth / 1e9, 1.0]]
    for level in LEVELS:
        alone = [call.alone.bandwidth for call in calls if call.level == level and call.alone is not None]
        if alone:
            rows.append([f"{level:.0%}", level * bandwidth / 1e9, median(alone) / 1e9, median(alone) / bandwidth])
    columns = ("to take", "GB/s asked*", "GB/s reached*", "of all they can*")
    note = f"Bytes read and written, as STREAM counts a copy. {remark}"
    return ResultTable(
        "memory", "The other processes alone: memory bandwidth", columns, rows, source=FIGURE_12, note=note
    )


def _kept(calls: Sequence[Call], found: Sequence[Losses], remark: str) -> Iterator[ResultTable]:
    levels = [f"at {level:.0%}*" for level in LEVELS if level]
    files: list[list[Cell]] = []
    steps: list[list[Cell]] = []
    for work, tool in dict.fromkeys((one.work, one.tool) for one in found):
        own = {one.level: one for one in found if (one.work, one.tool) == (work, tool)}
        if 0.0 not in own:
            continue
        kept = [own[level].kept if level in own else None for level in LEVELS if level]
        nbytes = median(call.nbytes for call in calls if (call.work, call.tool) == (work, tool))
        if work == STEP:
            steps.append([tool, own[0.0].seconds * 1e3, nbytes / 1e6, *kept])
        else:
            files.append([work, tool, nbytes / own[0.0].seconds / 1e6, *kept])
    title = "Bandwidth of saves and loads while other processes take memory bandwidth, 1 = undisturbed"
    note = f"The paper's figure is of training; this asks the same of files. {remark}"
    columns: Sequence[str] = ("work", "tool", "MB/s undisturbed*", *levels)
    yield ResultTable("files", title, columns, files, source=FIGURE_12, note=note)
    title = "Training while other processes take memory bandwidth, throughput, 1 = undisturbed"
    note = f"Tensors lie in host memory here, not on a GPU as in the paper: plain training loses too. {remark}"
    columns = ("way", "ms undisturbed*", "MB moved out*", *levels)
    yield ResultTable("training", title, columns, steps, source=FIGURE_12, note=note)


def _hogs_beside(found: Sequence[Losses], remark: str) -> ResultTable:
    rows: list[list[Cell]] = []
    for work, tool in dict.fromkeys((one.work, one.tool) for one in found):
        own = {one.level: one.loads_kept for one in found if (one.work, one.tool) == (work, tool)}
        rows.append([work, tool, *(own.get(level) for level in LEVELS if level)])
    columns = ("beside", "tool", *(f"at {level:.0%}*" for level in LEVELS if level))
    title = "What the other processes keep of their memory bandwidth, 1 = alone"
    note = f"1 over a figure is how many times as long the same work takes, which the paper's bars show. {remark}"
    return ResultTable("hogs", title, columns, rows, source=FIGURE_13, note=note)


def _latency(calls: Sequence[Call], remark: str) -> ResultTable:
    rows: list[list[Cell]] = []
    for level in LEVELS:
        own = [call for call in calls if call.work == STEP and call.level == level and level]
        histograms = {"alone": _sum(call.alone.took for call in own if call.alone is not None)}
        for way in WAYS:
            histograms[way] = _sum(call.beside.took for call in own if call.tool == way and call.beside is not None)
        alone = [chunk_seconds(histograms["alone"], share) for share in _SHARES]
        for name, took in histograms.items():
            times = [chunk_seconds(took, share) for share in _SHARES]
            if any(time is None for time in times):
                continue
            delays = [time / first - 1 for time, first in zip(times, alone, strict=True) if time and first]
            rows.append([f"{level:.0%}", name, *(time * 1e3 for time in times if time), *(100 * d for d in delays)])
    percent = [f"{share:.0%}" for share in _SHARES]
    columns = ("to take", "beside", *(f"{p} ms*" for p in percent), *(f"{p} delay, %*" for p in percent))
    title = "One copy of the other processes: how long it takes, in so many of the cases at most"
    note = f"The paper's queries are a BERT's; these are copies of 4 MiB, their times known to 4 %. {remark}"
    return ResultTable("latency", title, columns, rows, source=TABLE_4, note=note)


def _sum(histograms: Iterable[Sequence[int]]) -> list[int]:
    return [sum(counts) for counts in zip(*histograms, strict=True)]
