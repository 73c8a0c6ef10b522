"""Rebuilds dictionaries continuously while a model trains with offloaded feature maps (Fastensor, tables 13, 14).

A rebuild is that of the paper's code: each tool writes and reads one feature map of a size, and the best is the one
with the least sum of both times. Here the next rebuild begins as soon as one ends, at every size.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from fastio.dicts import RDic, WDic, WRDic
from fastio.offload import Offload
from fastio.offload.stores.tool_store import FORMAT, ToolStore
from fastio.transports import selection
from fastio.transports.transport import LOAD, SAVE
from fastio_bench.workloads import training_models

LIVE = "live"
_CPU = frozenset({"cpu"})
_LEARNING_RATE = 0.01


def tools() -> tuple[str, ...]:
    """The tools that can write and read a feature map."""
    saving, loading = (selection.able(op, FORMAT, _CPU, "object")[0] for op in (SAVE, LOAD))
    return tuple(tool for tool in saving if tool in loading)


@dataclass
class Rebuild:
    """One round over the tools at one size: each tool's times, and the live tuner's choice."""

    written: dict[str, float] = field(default_factory=dict)
    read: dict[str, float] = field(default_factory=dict)
    live: str = ""

    def sums(self) -> dict[str, float]:
        """WRDic's times: the seconds to write plus those to read, by tool."""
        return {tool: seconds + self.read[tool] for tool, seconds in self.written.items()}


class RebuildingStore:
    """A :class:`fastio.offload.stores.tiers.Store` that moves the feature maps of each size by the tools in turn.

    In each turn the live tuner moves one more. It is a WRDic that learns only from its own calls, as a user's does.
    """

    def __init__(self, folder: Path, among: Sequence[str], seed: int = 0) -> None:
        self.rebuilds: dict[int, list[Rebuild]] = {}
        self.live = ToolStore(folder, WRDic(WDic(), RDic()))
        self._stores = {tool: ToolStore(folder, tool) for tool in among}
        self._stores[LIVE] = self.live
        self._turns: dict[int, list[str]] = {}
        self._blobs: dict[int, tuple[str, Rebuild]] = {}
        self._chance = random.Random(seed)

    def write(self, index: int, address: int, nbytes: int) -> None:
        """Write a new blob by the next tool."""
        rebuilds, turns = self.rebuilds.setdefault(nbytes, []), self._turns.setdefault(nbytes, [])
        if not turns:
            turns.extend(self._chance.sample(list(self._stores), len(self._stores)))
            rebuilds.append(Rebuild())
        turn, rebuild = turns.pop(), rebuilds[-1]
        before = Counter(self.live.stats.tools) if turn == LIVE else Counter[str]()
        began = time.perf_counter()
        self._stores[turn].write(index, address, nbytes)
        self._stores[turn].wait(index)
        took = time.perf_counter() - began
        if turn == LIVE:
            (rebuild.live,) = Counter(self.live.stats.tools) - before
        else:
            rebuild.written[turn] = took
        self._blobs[index] = turn, rebuild

    def read(self, index: int, address: int, nbytes: int) -> None:
        """Read a blob back by the tool that wrote it."""
        turn, rebuild = self._blobs[index]
        began = time.perf_counter()
        self._stores[turn].read(index, address, nbytes)
        self._stores[turn].wait(index)
        if turn != LIVE:
            rebuild.read[turn] = time.perf_counter() - began

    def update(self) -> int:
        """Nothing is ever in flight."""
        return 0

    def is_done(self, index: int) -> bool:
        """True: every transfer is synchronous."""
        return self._stores[self._blobs[index][0]].is_done(index)

    def wait(self, index: int) -> None:
        """Nothing to wait for."""

    def free(self, index: int) -> None:
        """Remove a blob. KeyError if there is none."""
        turn, _ = self._blobs.pop(index)
        self._stores[turn].free(index)

    def close(self) -> None:
        """Free the space."""
        for store in self._stores.values():
            store.close()

    def complete(self) -> dict[int, list[Rebuild]]:
        """By size: the complete rebuilds, in their order."""
        whole = {tool for tool in self._stores if tool != LIVE}
        found = {
            nbytes: [rebuild for rebuild in rebuilds if rebuild.live and set(rebuild.read) == whole]
            for nbytes, rebuilds in self.rebuilds.items()
        }
        return {nbytes: rebuilds for nbytes, rebuilds in sorted(found.items()) if rebuilds}


@dataclass(frozen=True, slots=True)
class Model:
    """A network of :mod:`fastio_bench.workloads.training_models`, with the paper's table and network."""

    name: str
    label: str
    batch: int
    depth: int
    width: int
    source: str
    paper: str


@dataclass
class Training:
    """A model in training, and the complete rebuilds so far, by size."""

    model: Model
    steps: int = 0
    found: dict[int, list[Rebuild]] = field(default_factory=dict)

    def run(self, folder: Path, seconds: float, tell: Callable[[float], None] = lambda passed: None) -> None:
        """Train for ``seconds``, at least one step. ``tell`` is called with those passed. Ctrl-C loses no rebuild."""
        model = self.model
        training = training_models.make(model.name, model.batch, model.depth, model.width)
        optimizer = torch.optim.SGD(training.model.parameters(), lr=_LEARNING_RATE)
        store, began, told = RebuildingStore(folder, tools()), time.monotonic(), 0.0
        offload = Offload(training.model, store=store, policy="fastensor", codec="none")
        try:
            while not self.steps or told < seconds:
                with offload:
                    loss = training.loss()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                self.steps += 1
                passed = min(time.monotonic() - began, seconds)
                tell(passed - told)
                told = passed
        finally:
            self.found.update(store.complete())
            offload.close()
            store.close()
