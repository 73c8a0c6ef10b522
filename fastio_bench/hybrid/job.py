"""Runs in a fresh process: trains some steps with AdamW, its state in memory or on disk."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from fastio.memory.raw_memory import view
from fastio_bench.harness.children import completed
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.harness.rounds import describe
from fastio_bench.harness.timing import Peak
from fastio_bench.offload.training_child import EXACT_MEMORY

_CHILD = "import sys; sys.path[:] = {path!r}; from fastio_bench.hybrid.job import main; main(sys.argv[1])"
_WIDTH = 2048
_ITEM = 4
_BATCH = 4


@dataclass(frozen=True)
class Job:
    """Linear layers of 2,048 features, ``nbytes`` of parameters in all, trained ``steps`` times with fused AdamW.

    ``store``: a folder for the optimizer's state, None for plain training. ``exact_memory``: freed blocks go back to
    the system at once, so that the peak is that of used memory; the times are not valid then.
    """

    nbytes: int
    steps: int
    store: str | None = None
    exact_memory: bool = False


@dataclass(frozen=True)
class Run:
    """The results of training. ``digest``: SHA-256 of losses, parameters and state. ``update_s``: each step's update.

    ``moved``: bytes that each update wrote and read. ``peak_bytes``: the peak of resident memory above that of the
    process without a model; ``parameter_bytes`` of it are parameters.
    """

    digest: str
    update_s: list[float]
    moved: list[tuple[int, int]]
    parameter_bytes: int
    peak_bytes: int | None


def run(job: Job) -> Run:
    """Do the job in a fresh process. Raises ChildError with the child's reason if it fails."""
    command = [sys.executable, "-c", _CHILD.format(path=sys.path), json.dumps(asdict(job))]
    variables = {**os.environ, **(EXACT_MEMORY if job.exact_memory else {})}
    child = completed(command, env=variables)
    if child.returncode or not child.stdout.strip():
        last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise ChildError(f"the process ended with status {child.returncode}: {last}")
    answer = json.loads(child.stdout.splitlines()[-1])
    if "error" in answer:
        raise ChildError(answer["error"])
    found = answer["run"]
    return Run(**{**found, "moved": [tuple(pair) for pair in found["moved"]]})


def main(text: str) -> None:
    """In the child: run the job and print one line of JSON: the run, or the error."""
    try:
        answer: dict[str, Any] = {"run": asdict(_run(Job(**json.loads(text))))}
    except Exception as error:
        answer = {"error": describe(error)}
    print(json.dumps(answer))


def _run(job: Job) -> Run:
    from fastio.hybrid import Hybrid

    _warm_up()
    peak = Peak()
    torch.manual_seed(0)
    depth = max(1, job.nbytes // (_WIDTH * (_WIDTH + 1) * _ITEM))
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(depth)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    hybrid = None
    if job.store is not None:
        settings: dict[str, Any] = {"gradient_reserve": 0.0, "planner": _in_place, "optimizer_store": job.store}
        hybrid = Hybrid(model, optimizer, device="cpu", **settings)
    digest = hashlib.sha256()
    update_s, moved = [], []
    for _ in range(job.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(_BATCH, _WIDTH)).square().mean()
        loss.backward()
        digest.update(loss.detach().numpy().tobytes())
        before = None if hybrid is None else hybrid.report()
        began = time.perf_counter()
        optimizer.step()
        update_s.append(time.perf_counter() - began)
        if hybrid is not None and before is not None:
            after = hybrid.report()
            written = after.state_bytes_written - before.state_bytes_written
            moved.append((written, after.state_bytes_read - before.state_bytes_read))
    peak_bytes = peak.beyond(0)
    for tensor in _tensors(model, optimizer):
        digest.update(view(tensor.data_ptr(), tensor.nbytes))  # without a copy
    parameter_bytes = sum(p.numel() * _ITEM for p in model.parameters())
    return Run(digest.hexdigest(), update_s, moved, parameter_bytes, peak_bytes)


def _in_place(costs: Iterable[object]) -> list[str]:
    """Return the parameter itself: without a GPU, a copy would only add to the counted memory."""
    return ["DHA" for _ in costs]


def _tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    yield from (p.detach() for p in model.parameters())
    states = optimizer.state_dict()["state"]
    for number in sorted(states):
        yield from (states[number][name] for name in sorted(states[number]))


def _warm_up() -> None:
    """Run a step of a small model: what torch loads for the first step does not count as the model's memory."""
    small = nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(small.parameters(), fused=True)
    small(torch.ones(2, 8)).sum().backward()
    optimizer.step()
