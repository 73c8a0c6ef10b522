"""Maps a paper's tables to the commands' tables that answer them, to report what is missing. Pure.

:mod:`fastio_bench.papers.rows` has one figure of each of these, and the figures that only models answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass

from fastio_bench.report.table import ResultTable


@dataclass(frozen=True, slots=True)
class Answer:
    """The ``table`` (any, if empty) of the documents of ``command``, made by the command line ``line``.

    ``gpu``: it needs a GPU.
    """

    command: str
    table: str
    line: str
    what: str
    gpu: bool = False


_GPU_STEPS = Answer(
    "gpu-offload", "", "python -m fastio_bench.offload.gpu_offload --dir DIR", "steps and memory of the GPU", gpu=True
)
_STEPS = Answer("offload", "ways", "fastio-bench offload", "steps and memory")
_ACCURACY = Answer("offload", "accuracy", "fastio-bench offload --accuracy", "accuracy")
_HYBRID = Answer("hybrid", "hybrid-gpu", "fastio-bench hybrid", "steps and memory of the GPU", gpu=True)


def _io_gpu(what: str) -> Answer:
    return Answer("io", "io-batch-4-gpu", "fastio-bench io --device cuda", what, gpu=True)


def _io(table: str, what: str) -> tuple[Answer, ...]:
    return (Answer("io", table, "fastio-bench io", what), _io_gpu(f"{what} with tensors on the GPU"))


def _simulated(table: str, what: str) -> tuple[Answer, ...]:
    return (Answer("offload", table, "fastio-bench offload --simulate", f"simulated {what}"),)


def _contend(table: str, what: str) -> tuple[Answer, ...]:
    return (Answer("contend", table, "fastio-bench contend", what),)


def _hybrid(table: str, what: str, *more: Answer) -> tuple[Answer, ...]:
    return (Answer("hybrid", table, "fastio-bench hybrid", f"simulated {what}"), *more)


ANSWERS: dict[str, tuple[Answer, ...]] = {
    "fastensor-1": (_STEPS, _GPU_STEPS),
    "fastensor-2": _io("io-warm-read", "warm reads"),
    "fastensor-3": _io("io-cold-read", "cold reads"),
    "fastensor-4": _io("io-durable-write", "durable writes"),
    "fastensor-5": _io("io-cpu-utilisation", "CPU utilisation"),
    "fastensor-6": (_io_gpu("GPU utilisation"),),
    "fastensor-8": (Answer("tools", "reach", "fastio-bench tools", "feature maps by each tool alone"), _STEPS),
    "fastensor-9": (Answer("model", "", "fastio-bench model", "saves of these models"),),
    "fastensor-10": (_STEPS, _ACCURACY, _GPU_STEPS),
    "fastensor-11": (_STEPS, _ACCURACY, _GPU_STEPS),
    "fastensor-12": (Answer("offload", "depths", "fastio-bench offload --memory-limit SIZE", "the deepest network"),),
    "fastensor-13": (Answer("tools", "spread-transformer", "fastio-bench tools", "rebuilt dictionaries"),),
    "fastensor-14": (Answer("tools", "spread-vit", "fastio-bench tools", "rebuilt dictionaries"),),
    "flashneuron-3": _simulated("capacities", "batches"),
    "flashneuron-4": _contend("latency", "latencies of other processes"),
    "flashneuron-8": (*_simulated("courses", "throughput over the batch"), _GPU_STEPS),
    "flashneuron-12": _contend("training", "training beside other processes"),
    "flashneuron-13": _contend("hogs", "what other processes keep"),
    "vdnn-11": _simulated("saved", "memory"),
    "vdnn-12": _simulated("networks", "memory"),
    "vdnn-13": _simulated("traffic", "bandwidth of the GPU's memory (nothing of fastio-bench measures it)"),
    "vdnn-14": _simulated("saved", "iterations"),
    "vdnn-15": _simulated("networks", "memory"),
    "memferry-9": _hybrid("hybrid-speed-a100", "iterations", _HYBRID),
    "memferry-10": _hybrid("hybrid-busy", "utilisation (nothing of fastio-bench measures it in training)"),
    "memferry-11": _hybrid("hybrid-largest", "sizes of models"),
    "memferry-12": _hybrid("hybrid-memory-12", "memory", _HYBRID),
    "memferry-13a": _hybrid("hybrid-speed-a100", "iterations", _HYBRID),
    "memferry-13b": _hybrid("hybrid-memory-13b", "memory", _HYBRID),
}
"""The answers by the name of the paper's table."""


def missing(theirs: ResultTable, present: Set[tuple[str, str]], said: Set[str] = frozenset()) -> Iterator[str]:
    """A line for each answer that is not ``present``, a set of (command, table name).

    For commands in ``said``, already reported as missing, only answers that need a GPU.
    """
    commands = {command for command, _ in present}
    for one in ANSWERS.get(theirs.name, ()):
        if (one.command, one.table) in present or (not one.table and one.command in commands):
            continue
        if one.command in said and not one.gpu:
            continue
        where = "Needs a GPU" if one.gpu else "Not in these results"
        yield f"{where}: {one.what}, `{one.line} --out DIR`."
