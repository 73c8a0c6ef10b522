"""Measures two ranks on the CPU: plain DDP, hybrid training with a host copy for each, and with one for both."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from subprocess import PIPE
from typing import Any

import torch
from torch import nn

from fastio_bench.harness.children import started
from fastio_bench.harness.fresh_process import ChildError
from fastio_bench.offload.training_child import EXACT_MEMORY
from fastio_bench.report.table import Cell, ResultTable

WAYS = ("plain DDP, AdamW on the CPU", "Hybrid, a host copy for each rank", "Hybrid, one host copy for both")
IN_TURN = "all ways in turn, for their times"
RANKS = 2
_CHILD = "import sys; sys.path[:] = {path!r}; from fastio_bench.hybrid.ranks import main; main(*sys.argv[1:])"
_WIDTH, _ROWS = 1024, 4
_MEMORY_STEPS = 3
_MIB = 1 << 20


def measure(folder: Path, nbytes: int, steps: int, tell: Callable[[str, float], None]) -> ResultTable:
    """Train every way in two fresh processes for its memory, then all of them in turn; return their table.

    Raises ChildError.
    """
    memories = []
    for number, way in enumerate(WAYS):
        tell(way, 0)
        found = _run(folder / f"rendezvous-{number}", str(number), nbytes, _MEMORY_STEPS)
        memories.append(sum(one["memory"] for one in found))
        tell(way, 1)
    tell(IN_TURN, 0)
    found = _run(folder / "rendezvous", "".join(map(str, range(len(WAYS)))), nbytes, steps)
    tell(IN_TURN, float(len(WAYS)))
    parameters = found[0]["parameters"]
    rows: list[list[Cell]] = []
    plain = {one["digests"][0] for one in found}
    for number, (way, memory) in enumerate(zip(WAYS, memories, strict=True)):
        own = memory - RANKS * parameters  # without the gradients, in DDP's buckets
        step, update, busy = (
            max(one[what][number] for one in found) * 1e3 for what in ("step_s", "update_s", "processor_s")
        )
        same = plain == {one["digests"][number] for one in found}
        rows.append([way, step, update, busy, memory / _MIB, own / parameters, "yes" if same else "NO"])
    columns = (
        *("way", "step ms*", "update ms*", "processor ms*"),
        *("memory MiB*", "host copies x parameters*", "same bits"),
    )
    note = (
        f"{parameters / 1e6:,.0f} MB of parameters, AdamW (fused), gloo, one thread a rank, {steps} steps of each way "
        "in turn, the median of all but the first; processor: of a rank in a step. On the CPU gradients and DDP's "
        "buckets, which a GPU would hold, are in the memory too (proportional, PSS, of both ranks); host copies are "
        "without them"
    )
    return ResultTable("hybrid-ranks", "two ranks of one machine, measured on the CPU", columns, rows, note=note)


def _run(rendezvous: Path, ways: str, nbytes: int, steps: int) -> list[dict[str, Any]]:
    given: Sequence[str] = (str(rendezvous), ways, str(nbytes), str(steps))
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                started(
                    [sys.executable, "-c", _CHILD.format(path=sys.path), str(rank), *given],
                    stdout=PIPE,
                    stderr=PIPE,
                    env={**os.environ, **EXACT_MEMORY},
                )
            )
            for rank in range(RANKS)
        ]
        said = [rank.communicate() for rank in ranks]
        for rank, (out, complaint) in zip(ranks, said, strict=True):
            if rank.returncode or not out.strip():
                raise ChildError((complaint.strip().splitlines() or ["a rank said nothing"])[-1])
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def main(rank: str, rendezvous: str, ways: str, nbytes: str, steps: str) -> None:
    """In a rank: train these ways in turn, and print one line of JSON."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=RANKS)
    _train(ways, _WIDTH * _WIDTH, 3)  # what a first training loads for good
    before = _memory()
    dist.barrier()
    print(json.dumps(_train(ways, int(nbytes), int(steps), before)))
    dist.destroy_process_group()


def _train(ways: str, nbytes: int, steps: int, before: int = 0) -> dict[str, Any]:
    import torch.distributed as dist

    trainings = [_Training(int(way), nbytes) for way in ways]
    for _ in range(steps):
        for training in trainings:
            dist.barrier()
            training.step()
    dist.barrier()
    memory = _memory() - before
    dist.barrier()
    digests = [training.digest() for training in trainings]
    dist.barrier()
    for training in trainings:
        training.close()
    found = {name: [median(one.seconds[name][1:]) for one in trainings] for name in trainings[0].seconds}
    return {**found, "memory": memory, "parameters": trainings[0].nbytes, "digests": digests}


class _Training:
    """A training of one way. ``seconds``: of each step, of its update, and of this process's processor."""

    def __init__(self, way: int, nbytes: int) -> None:
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from fastio.hybrid import Hybrid

        torch.manual_seed(0)
        depth = max(1, nbytes // (4 * _WIDTH * _WIDTH))
        self._model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(depth)])
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-3, fused=True)
        self._hybrid = None
        if way:
            group: dict[str, Any] = {"process_group": dist.group.WORLD} if way == 2 else {}
            in_place: dict[str, Any] = {"device": "cpu", "planner": lambda costs: ["DHA" for _ in costs]}
            self._hybrid = Hybrid(self._model, self._optimizer, **in_place, **group)
        self._ranks = DistributedDataParallel(self._model, gradient_as_bucket_view=True)
        self._generator = torch.Generator().manual_seed(dist.get_rank())
        self.seconds: dict[str, list[float]] = {"step_s": [], "update_s": [], "processor_s": []}
        self.nbytes = sum(p.nbytes for p in self._model.parameters())

    def step(self) -> None:
        """Train a step."""
        began, busy = time.perf_counter(), time.process_time()
        self._optimizer.zero_grad()
        self._ranks(torch.randn(_ROWS, _WIDTH, generator=self._generator)).square().mean().backward()
        middle = time.perf_counter()
        self._optimizer.step()
        self.seconds["update_s"].append(time.perf_counter() - middle)
        self.seconds["step_s"].append(time.perf_counter() - began)
        self.seconds["processor_s"].append(time.process_time() - busy)

    def digest(self) -> str:
        """The hash of the parameters."""
        found = hashlib.sha256()
        for parameter in self._model.parameters():
            found.update(parameter.detach().numpy().tobytes())
        return found.hexdigest()

    def close(self) -> None:
        """Close Hybrid."""
        if self._hybrid is not None:
            self._hybrid.close()


def _memory() -> int:
    """Proportional bytes of this process."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
