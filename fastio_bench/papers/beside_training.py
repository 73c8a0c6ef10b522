"""Our training with offloaded feature maps beside the Fastensor paper's (tables 8, 10 and 11). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from fastio_bench.offload.training_ways import PLAIN, TORCH
from fastio_bench.papers import figures
from fastio_bench.papers.beside import Question, Row, figure, found, over, trained
from fastio_bench.report.documents import Document
from fastio_bench.report.table import MEASURED, PAPER

_THEIR_PLAIN, _BEST, _TORCH = "No_offload", "Fastensor_wr", "Torch"  # the rows of the paper's tables


class _Trained(NamedTuple):
    """One way's seconds of an epoch, accuracy and MB of GPU memory; None if it did not train."""

    seconds: float | None
    accuracy: float | None
    megabytes: float | None


def _papers() -> Iterator[tuple[str, dict[str, _Trained]]]:
    """What was trained, and the results by method."""
    networks = ((10, "BERT", ("64", "2,048", "40,960")), (11, "ViT-H/14", ("16", "64", "960")))
    for number, network, batches in networks:
        (table,) = figures.of(f"Fastensor, table {number}")
        for place, batch in enumerate(batches):
            own = slice(1 + 3 * place, 4 + 3 * place)
            by = {str(row[0]): _Trained(*map(figure, row[own])) for row in table.rows}
            yield f"{network}, batch {batch}", by


def _their_steps() -> Iterator[Row]:
    for what, by in _papers():
        plain, torch = by[_THEIR_PLAIN], by[_TORCH]
        for way in (_BEST, _TORCH):
            one = by[way]
            times = (over(one.seconds, plain.seconds), over(one.seconds, torch.seconds))
            yield [PAPER, what, way, *times, over(one.megabytes, plain.megabytes, 100)]


def _our_steps(document: Document) -> Iterator[Row]:
    every = [one for one in found(document, "ways") if "step_s" in one]
    for batch in dict.fromkeys(one.get("batch") for one in every):
        ways = {one["way"]: one for one in every if one.get("batch") == batch}
        plain, torch = ways.get(PLAIN, {}), ways.get(TORCH, {})
        for way, one in ways.items():
            if way != PLAIN:
                times = (over(one["step_s"], plain.get("step_s")), over(one["step_s"], torch.get("step_s")))
                memory = over(one["peak_bytes"], plain.get("peak_bytes"), 100)
                yield [MEASURED, trained(document, batch), way, *times, memory]


def _their_accuracies() -> Iterator[Row]:
    for what, by in _papers():
        plain, own = by[_THEIR_PLAIN].accuracy, by[_BEST].accuracy
        if plain is not None and own is not None:
            yield [PAPER, what, _BEST, plain, own, 100 * (own - plain), None]


def _our_accuracies(document: Document) -> Iterator[Row]:
    ways = {one["way"]: one for one in found(document, "accuracy") if "mean" in one}
    plain = ways.pop(PLAIN, None)
    for way, one in ways.items():
        if plain is not None:
            what, apart = f"CNN on digits, {len(one['scores'])} seeds", 100 * (one["mean"] - plain["mean"])
            yield [MEASURED, what, way, plain["mean"], one["mean"], apart, 100 * plain["spread"]]


def _their_tools() -> Iterator[Row]:
    (table,) = figures.of("Fastensor, table 8")
    seconds = {str(tool): figure(cell) for tool, cell in table.rows}
    for tool, took in seconds.items():
        yield [PAPER, "a toy model", tool, over(took, seconds[_BEST])]


def _our_tools(document: Document) -> Iterator[Row]:
    for table in document.tables:
        for place, column in enumerate(table.columns):
            model, _, what = column.rpartition(": ")
            if table.name == "reach" and what == "% of best time*":
                for row in table.rows:
                    yield [MEASURED, model, row[0], over(100, figure(row[place]))]


QUESTIONS = (
    Question(
        "steps",
        "Training with activations offloaded: time and memory over those of plain training",
        ("what trains", "way", "time, x plain*", "time, x torch's*", "memory, % of plain*"),
        "Fastensor, tables 10-11",
        "torch's: every saved tensor by torch.save and torch.load. Ours are steps on the CPU, and resident memory "
        "above the model's; the paper's are epochs, and all memory of a GPU, beside whose speed transfers weigh more. "
        "Its largest batches do not train without offload",
        _our_steps,
        _their_steps,
    ),
    Question(
        "accuracy",
        "Accuracy with activations offloaded, beside plain training",
        ("what trains", "way", "plain*", "offloaded*", "apart, points*", "plain's deviation over seeds, points*"),
        "Fastensor, tables 10-11",
        "the paper has one training of each",
        _our_accuracies,
        _their_accuracies,
    ),
    Question(
        "tools",
        "Feature maps by one tool alone",
        ("what trains", "way", "time, x the least*"),
        "Fastensor, table 8",
        "ours: time to write and read the feature maps over that of the best tool of each rebuild, which no choosing "
        "reaches; the paper's: epochs over Fastensor_wr's, computing included",
        _our_tools,
        _their_tools,
    ),
)
