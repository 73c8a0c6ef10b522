"""Runs ``fastio-bench model``: every tool on every model's state dict, as often as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import fastio
from fastio.transports import registry
from fastio_bench.harness.round_budget import Cost, RoundBudget
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.peers import catalogue
from fastio_bench.peers.compare import Comparison
from fastio_bench.peers.peer import TOOL, Peer
from fastio_bench.workloads.objects import Workload

FILES = 4  # of one model on the disk at once: torch's, numpy's, fastio's, and the one being saved
_LEARNING = 6  # the most rounds in which fastio's dictionaries try their tools
_OWNER = "fastio"  # all of fastio's tools load its files: they write the same ones
_PT = "pt"


@dataclass
class ModelRuns:
    """Models by tools: at most ``rounds`` of each model, fewer if all would take longer than ``seconds``.

    The smallest comes first: its time gives the estimate for the others. ``left_out`` names the models for which there
    was no time. ``tell(what, weight)`` is called for the progress.
    """

    folder: Path
    rounds: int
    workloads: Sequence[Workload]
    tools: Sequence[Peer]
    seconds: float
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    left_out: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.workloads = sorted(self.workloads, key=lambda workload: workload.nbytes)
        costs = {}
        for workload in self.workloads:
            once, twice = (sum(self._comparison(workload, rounds).weights()) for rounds in (1, 2))
            costs[workload.name] = Cost(2 * once - twice, twice - once)
        self.budget = RoundBudget(costs, self.seconds, self.rounds)

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        planned = self.budget.plan()
        return [
            weight
            for workload in self.workloads
            if planned[workload.name]
            for weight in self._comparison(workload, planned[workload.name]).weights()
        ]

    def run(self) -> Iterator[Sample | Failure]:
        """Every outcome, as soon as it is known."""
        began = time.monotonic()
        for workload in self.workloads:
            start = time.monotonic()
            rounds = self.budget.plan()[workload.name] if start - began < self.seconds else 0
            if rounds:
                yield from self._comparison(workload, rounds).run()
            else:
                self.left_out.append(workload.label)
            self.budget.done(workload.name, rounds, time.monotonic() - start)

    def _comparison(self, workload: Workload, rounds: int) -> Comparison:
        return Comparison(self.folder, rounds, [workload], self.tools, learning=_LEARNING, memory=False, tell=self.tell)


def tools() -> tuple[list[Peer], list[str]]:
    """torch, numpy, fastio and its tools that can hold a state dict, and remarks on those that are left out.

    numpy uses ``savez``: as a tool of fastio it writes one array a file.
    """
    found, remarks = [catalogue.find(name) for name in ("torch", "numpy", "fastio")], []
    for status in fastio.tools():
        tool = registry.find(status.name)
        if tool.transport is None:
            remarks.append(f"{tool.name}: {tool.reason}; {tool.cure}".rstrip("; "))
        elif "cpu" not in status.devices or not tool.transport.capabilities.automatic:
            continue
        elif _PT in tool.transport.capabilities.whole:
            remarks.append(f"{tool.name}: hands a state dict to torch.save and torch.load, which take part themselves")
        else:
            peer = catalogue.find(f"{TOOL}{status.name}")
            problem = peer.unable("save", "dict")
            if problem:
                remarks.append(f"fastio's {tool.name}: {problem}")
            else:
                found.append(replace(peer, files_of=_OWNER))
    return found, remarks
