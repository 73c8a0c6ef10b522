"""Models' state dicts saved and loaded by every tool, model after model, each as often as the time allows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import fastio
from fastio.transports import registry
from fastio_bench.harness.round_budget import Cost, Pace
from fastio_bench.harness.rounds import Failure, Sample
from fastio_bench.peers import catalogue
from fastio_bench.peers.compare import Comparison
from fastio_bench.peers.peer import TOOL, Peer
from fastio_bench.workloads.objects import Workload

FILES = 4  # of one model that lie on the disk at once: torch's, numpy's, fastio's, and the one being saved
_LEARNING = 6  # rounds at most in which fastio's dictionaries try their tools
_OWNER = "fastio"  # whose files all of fastio's tools load: they write the same ones
_PT = "pt"


@dataclass
class ModelRuns:
    """Models by tools; ``rounds`` at most of each model, fewer where more would take longer than ``seconds`` in all.

    The smallest comes first, so that what it really took tells how long the others will take.
    Those for which there was no time at all are named in ``left_out``. ``tell(what, weight)`` hears what is being done
    and is done.
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
        self.pace = Pace(costs, self.seconds, self.rounds)

    def weights(self) -> list[float]:
        """The weight of every call to come."""
        planned = self.pace.plan()
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
            rounds = self.pace.plan()[workload.name] if start - began < self.seconds else 0
            if rounds:
                yield from self._comparison(workload, rounds).run()
            else:
                self.left_out.append(workload.label)
            self.pace.done(workload.name, rounds, time.monotonic() - start)

    def _comparison(self, workload: Workload, rounds: int) -> Comparison:
        return Comparison(self.folder, rounds, [workload], self.tools, learning=_LEARNING, memory=False, tell=self.tell)


def tools() -> tuple[list[Peer], list[str]]:
    """torch, numpy, fastio and its tools that can hold a state dict, by name; and remarks on those that are left out.

    numpy is that of ``savez``: as a tool of fastio it writes one array a file.
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
