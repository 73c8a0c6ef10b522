"""Runs in a fresh process: trains some steps and reports times, memory, gradients and transfers."""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from fastio.offload.report import Report
from fastio_bench.harness.rounds import describe
from fastio_bench.harness.timing import Peak
from fastio_bench.offload import timeline as offload_timeline
from fastio_bench.offload import training_ways
from fastio_bench.workloads import training_models
from fastio_bench.workloads.objects import fingerprint

WARM_UP = 2  # uncounted steps: the profiled one and the first planned one
_LEARNING_RATE, _MOMENTUM = 0.01, 0.9
_NO_MEMORY = ("can't allocate memory", "not enough memory", "bad_alloc", "Cannot allocate memory", "out of memory")


@dataclass(frozen=True)
class Job:
    """The network, the way and the number of counted steps.

    ``settings`` go to ``fastio.Offload`` if ``way`` is fastio's. ``memory_limit``: bytes of private writable memory
    that training may take beyond an idle process; then the only result is whether it runs. ``gradients``: a file for
    the gradients of the last, fixed step, or "".
    """

    way: str
    architecture: str
    batch: int
    depth: int
    width: int
    steps: int
    folder: str
    settings: dict[str, Any] = field(default_factory=dict)
    memory_limit: int | None = None
    gradients: str = ""


@dataclass(frozen=True)
class Moved:
    """fastio's report on the counted steps: mean bytes and seconds of a step.

    ``predicted_s`` and ``actual_s`` are medians of an iteration, None if fastio predicts none. ``predicted_slowdown``
    is over an iteration without offload. ``status`` is the plan's: "fits" if the transfers hide behind the forward
    pass.
    """

    tiers: dict[str, dict[str, float]]
    stalled_s: float
    encoded: float
    status: str | None
    predicted_s: float | None
    predicted_slowdown: float | None
    actual_s: float | None


@dataclass(frozen=True)
class Run:
    """The results of training.

    ``steps_s`` and ``cpu_s`` (a mean) are seconds of the counted steps. ``peak_bytes`` is the peak of resident memory
    above what the process held before: the model, its gradients, the optimizer's state and what one plain step leaves.
    It is None if the kernel does not report it. ``losses`` are those of all steps. ``gradients`` (a CRC-32 of all) and
    ``fixed_loss`` belong to one more step, which starts from the first weights again. ``timeline`` is the last counted
    step's, in the form of :func:`fastio_bench.offload.timeline.document`.
    """

    steps_s: list[float]
    cpu_s: float
    peak_bytes: int | None
    losses: list[float]
    gradients: int
    fixed_loss: float
    moved: Moved | None
    timeline: dict[str, Any] | None


def main(text: str) -> None:
    """In the child: run the job and print one line of JSON: the run, the error, or that memory ran out."""
    answer: dict[str, Any]
    try:
        answer = {"run": asdict(_run(Job(**json.loads(text))))}
    except Exception as error:
        answer = {"out_of_memory" if is_out_of_memory(error) else "error": describe(error)}
    print(json.dumps(answer))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error means that memory ran out."""
    return isinstance(error, MemoryError) or any(said in str(error) for said in _NO_MEMORY)


def _run(job: Job) -> Run:
    if job.memory_limit is not None:
        _limit(job.memory_limit)
    arguments = job.architecture, job.batch, job.depth, job.width
    training = training_models.make(*arguments)
    parameters = training.model.parameters()
    optimizer = torch.optim.SGD(parameters, lr=_LEARNING_RATE, momentum=_MOMENTUM, foreach=False)
    if job.memory_limit is None:
        _step(training, optimizer, training_ways.Plain())
    peak = Peak()
    way = training_ways.make(job.way, training.model, Path(job.folder), job.settings)
    try:
        losses = [_step(training, optimizer, way) for _ in range(WARM_UP)]
        before, moments, steps_s = _Moment.of(way.report()), [], []
        cpu = time.process_time()
        for _ in range(job.steps):
            began = time.perf_counter()
            losses.append(_step(training, optimizer, way))
            steps_s.append(time.perf_counter() - began)
            moments.append(_Moment.of(way.report()))
        cpu = time.process_time() - cpu
        peak_bytes = peak.beyond(0)
        report = way.report()
        timeline = None if report is None else offload_timeline.document(report)
        gradients, fixed_loss = (0, 0.0) if job.memory_limit is not None else _fixed(job, training, way)
    finally:
        way.close()
    return Run(steps_s, cpu / job.steps, peak_bytes, losses, gradients, fixed_loss, _moved(before, moments), timeline)


def _step(training: training_models.Training, optimizer: torch.optim.SGD, way: training_ways.Way) -> float:
    with way.forward():
        loss = training.loss()
    loss.backward()
    optimizer.step()
    # Gradients keep their memory, so that it counts as held before.
    optimizer.zero_grad(set_to_none=False)
    return loss.item()


def _fixed(job: Job, training: training_models.Training, way: training_ways.Way) -> tuple[int, float]:
    """Run one step from the first weights, so that a codec's rounding has not accumulated over steps."""
    first = training_models.make(job.architecture, job.batch, job.depth, job.width)
    training.model.load_state_dict(first.model.state_dict())
    del first
    with way.forward():
        loss = training.loss()
    loss.backward()
    named = training.model.named_parameters()
    gradients = {name: parameter.grad for name, parameter in named if parameter.grad is not None}
    if job.gradients:
        torch.save(gradients, job.gradients)
    return fingerprint(gradients), loss.item()


@dataclass(frozen=True)
class _Moment:
    """A snapshot of a report, whose counters go on."""

    tiers: dict[str, dict[str, float]]
    stalled_s: float
    encoded: int
    status: str | None
    predicted_s: float | None
    predicted_slowdown: float | None
    actual_s: float | None

    @classmethod
    def of(cls, report: Report | None) -> _Moment | None:
        if report is None:
            return None
        return cls(
            {name: asdict(traffic) for name, traffic in report.traffic.items()},
            report.counts.stalled_write_s + report.counts.stalled_read_s,
            report.counts.encoded,
            None if report.planned is None else report.planned.status,
            report.predicted_s,
            None if report.predicted is None else report.predicted.slowdown,
            report.actual_s,
        )


def _moved(before: _Moment | None, after: list[_Moment | None]) -> Moved | None:
    moments = [moment for moment in after if moment is not None]
    if before is None or not moments:
        return None
    last, steps = moments[-1], len(moments)
    tiers = {
        name: {key: (value - before.tiers.get(name, {}).get(key, 0)) / steps for key, value in traffic.items()}
        for name, traffic in last.tiers.items()
    }
    return Moved(
        tiers,
        (last.stalled_s - before.stalled_s) / steps,
        (last.encoded - before.encoded) / steps,
        last.status,
        _median([moment.predicted_s for moment in moments]),
        _median([moment.predicted_slowdown for moment in moments]),
        _median([moment.actual_s for moment in moments]),
    )


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


def _limit(nbytes: int) -> None:
    """Limit this process's private writable memory to ``nbytes`` above that of the loaded and idle process.

    RLIMIT_DATA counts all such mappings from Linux 4.7 on. RLIMIT_AS would also count the libraries' code.
    """
    # Load everything: threads with their stacks, and what torch imports for the first optimizer.
    small = torch.nn.Linear(512, 512)
    optimizer = torch.optim.SGD(small.parameters(), lr=_LEARNING_RATE, momentum=_MOMENTUM, foreach=False)
    small(torch.ones(512, 512)).sum().backward()
    optimizer.step()
    with open("/proc/self/status") as stream:
        idle = next(int(line.split()[1]) * 1024 for line in stream if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (idle + nbytes, idle + nbytes))
