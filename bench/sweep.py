"""Every tool at every size, as ``fastio-bench io`` shows it (Fastensor, tables 2 to 6)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fastio.bench.contestants import Contestants, remove
from fastio.bench.peers import Peer
from fastio.bench.reserve import Reserve, available_memory
from fastio.bench.rounds import Contestant, Failure, Sample, Task, describe, interleave
from fastio.bench.workloads import MIB, Workload, fingerprint, one_tensor, place

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
QUICK_BATCHES = (1, 64)
WORKS = ("durable write", "write", "cold read", "warm read")


def fitting(batches: Sequence[int], folder: Path) -> tuple[list[Workload], str]:
    """The papers' sizes that memory and disk hold here, and a remark on those that were cut (empty if none was).

    A size needs memory for the object, what is loaded and as much again populated, and a file for each layout.
    """
    room = min(available_memory() // 4, shutil.disk_usage(folder).free // 8)
    everything = [one_tensor(batch) for batch in batches]
    kept = [workload for workload in everything if workload.nbytes <= room]
    cut = [f"{workload.nbytes / MIB:g}" for workload in everything if workload.nbytes > room]
    return kept, f"left out, for want of memory or disk: {', '.join(cut)} MiB" if cut else ""


@dataclass
class Sweep:
    """Tools over sizes. Loads run in fresh processes; ``tell(what, weight)`` hears what is being done and is done."""

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    tools: Sequence[Peer]
    device: str = "cpu"
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        return [
            _weight(workload, work)
            for workload in self.workloads
            for work in WORKS
            for tool in self.tools
            for _ in range(self.rounds)
            if not tool.unable(_operation(work), workload.kind)
        ]

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known."""
        for workload in self.workloads:
            thing = place(workload.make(), self.device)
            with Reserve(2 * workload.nbytes) as reserve:
                make = Contestants(self.folder, workload, thing, fingerprint(thing), reserve, self.device)
                for work in WORKS:
                    yield from self._compare(workload, work, make)
            for path in self.folder.iterdir():
                remove(path)

    def _compare(self, workload: Workload, work: str, make: Contestants) -> Iterator[Sample | Failure]:
        contestants: list[Contestant] = []
        for tool in self.tools:
            if tool.unable(_operation(work), workload.kind):
                continue
            try:
                if work in ("durable write", "write"):
                    contestants.append(make.saver(tool, durable=work == "durable write"))
                else:
                    contestants.append(make.loader(tool, "cold" if work == "cold read" else "warm"))
            except Exception as error:  # its file could not even be made: a result to show like any other
                yield Failure(work, workload.name, tool.label, 0, describe(error))
        task = Task(work, workload.name, workload.nbytes)
        what = f"{workload.label}: {work}"
        self.tell(what, 0)
        for outcome in interleave(task, contestants, self.rounds):
            self.tell(what, _weight(workload, work))
            yield outcome


def _operation(work: str) -> str:
    return "save" if work in ("durable write", "write") else "load"


def _weight(workload: Workload, work: str) -> float:
    gigabytes = workload.nbytes / 1e9
    return 2.0 + 1.5 * gigabytes if _operation(work) == "load" else 0.05 + 1.2 * gigabytes
