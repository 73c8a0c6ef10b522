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
RANKS = 2
_CHILD = "import sys; sys.path[:] = {path!r}; from fastio_bench.hybrid.ranks import main; main(*sys.argv[1:])"
_WIDTH, _ROWS = 1024, 4
_MIB = 1 << 20


def measure(folder: Path, nbytes: int, steps: int, tell: Callable[[str, float], None]) -> ResultTable:
    """Train every way in two fresh processes, and return their table. Raises ChildError."""
    rows: list[list[Cell]] = []
    digests = set()
    for number, way in enumerate(WAYS):
        tell(way, 0)
        found = _run(folder / f"rendezvous-{number}", number, nbytes, steps)
        digests |= {one["digest"] for one in found}
        memory = sum(one["memory"] for one in found)
        parameters = found[0]["parameters"]
        own = memory - RANKS * parameters  # without the gradients, in DDP's buckets
        step, update = (max(one[what] for one in found) * 1e3 for what in ("step_s", "update_s"))
        rows.append([way, step, update, memory / _MIB, own / parameters, "yes" if len(digests) == 1 else "NO"])
        tell(way, 1)
    columns = ("way", "step ms*", "update ms*", "memory MiB*", "host copies x parameters*", "same bits")
    note = (
        f"{parameters / 1e6:,.0f} MB of parameters, AdamW (fused), gloo, one thread a rank, {steps} steps, "
        "the median of all but the first. On the CPU gradients and DDP's buckets, which a GPU would hold, are in the "
        "memory too (proportional, PSS, of both ranks); host copies are without them"
    )
    return ResultTable("hybrid-ranks", "two ranks of one machine, measured on the CPU", columns, rows, note=note)


def _run(rendezvous: Path, way: int, nbytes: int, steps: int) -> list[dict[str, Any]]:
    given: Sequence[str] = (str(rendezvous), str(way), str(nbytes), str(steps))
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


def main(rank: str, rendezvous: str, way: str, nbytes: str, steps: str) -> None:
    """In a rank: train, and print one line of JSON."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=RANKS)
    _train(int(way), _WIDTH * _WIDTH, 3)  # what a first training loads for good
    before = _memory()
    dist.barrier()
    print(json.dumps(_train(int(way), int(nbytes), int(steps), before)))
    dist.destroy_process_group()


def _train(way: int, nbytes: int, steps: int, before: int = 0) -> dict[str, Any]:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    from fastio.hybrid import Hybrid

    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(_WIDTH, _WIDTH) for _ in range(max(1, nbytes // (4 * _WIDTH * _WIDTH)))])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    hybrid = None
    if way:
        group: dict[str, Any] = {"process_group": dist.group.WORLD} if way == 2 else {}
        hybrid = Hybrid(model, optimizer, device="cpu", planner=lambda costs: ["DHA" for _ in costs], **group)
    ranks = DistributedDataParallel(model, gradient_as_bucket_view=True)
    torch.manual_seed(dist.get_rank())
    step_s, update_s = [], []
    for _ in range(steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        ranks(torch.randn(_ROWS, _WIDTH)).square().mean().backward()
        middle = time.perf_counter()
        optimizer.step()
        update_s.append(time.perf_counter() - middle)
        step_s.append(time.perf_counter() - began)
    dist.barrier()
    memory = _memory() - before
    dist.barrier()
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    parameters = sum(p.nbytes for p in model.parameters())
    dist.barrier()
    if hybrid is not None:
        hybrid.close()
    return {
        "step_s": median(step_s[1:]),
        "update_s": median(update_s[1:]),
        "memory": memory,
        "parameters": parameters,
        "digest": digest,
    }


def _memory() -> int:
    """Proportional bytes of this process."""
    rollup = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return 1024 * next(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
