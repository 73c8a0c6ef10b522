"""Dictionaries rebuilt again and again while a model trains with its feature maps offloaded (Fastensor, tables 13, 14).

A rebuild is what the paper's code does: each tool writes and reads one feature map of a size, and the best is whose two
times add up to the least. Here it begins anew as soon as it is done, so every size is rebuilt all the time.
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
from fastio.engine import tool_selection
from fastio.offload import Offload
from fastio.offload.stores.tool_store import FORMAT, ToolStore
from fastio.transports.transport import LOAD, SAVE
from fastio_bench.workloads import training_models

LIVE = "live"
_CPU = frozenset({"cpu"})
_LEARNING_RATE = 0.01


def tools() -> tuple[str, ...]:
    """The tools that can both write and read a feature map."""
    saving, loading = (tool_selection.candidates(op, FORMAT, _CPU)[0] for op in (SAVE, LOAD))
    return tuple(tool for tool in saving if tool in loading)


@dataclass
class Rebuild:
    """One round over the tools at one size: what each took to write and to read, and what the live tuner chose."""

    written: dict[str, float] = field(default_factory=dict)
    read: dict[str, float] = field(default_factory=dict)
    live: str = ""

    def sums(self) -> dict[str, float]:
        """WRDic's times: seconds to write and to read, by tool."""
        return {tool: seconds + self.read[tool] for tool, seconds in self.written.items()}


class RebuildingStore:
    """A :class:`fastio.offload.stores.tiers.Store` that gives the feature maps of each size to the tools in turn.

    In each turn one more is moved by the live tuner, a WRDic that learns from its own calls alone, as a user's does.
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
        """Write a new blob by the tool whose turn it is."""
        rebuilds, turns = self.rebuilds.setdefault(nbytes, []), self._turns.setdefault(nbytes, [])
        if not turns:
            turns.extend(self._chance.sample(list(self._stores), len(self._stores)))
            rebuilds.append(Rebuild())
        turn, rebuild = turns.pop(), rebuilds[-1]
        before = Counter(self.live.stats.tools) if turn == LIVE else Counter[str]()
        began = time.perf_counter()
        self._stores[turn].write(index, address, nbytes)
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
        if turn != LIVE:
            rebuild.read[turn] = time.perf_counter() - began

    def update(self) -> int:
        """Nothing is ever under way."""
        return 0

    def is_done(self, index: int) -> bool:
        """True: every transfer is waited for."""
        return self._stores[self._blobs[index][0]].is_done(index)

    def wait(self, index: int) -> None:
        """Nothing to wait for."""

    def free(self, index: int) -> None:
        """Forget a blob."""
        turn, _ = self._blobs.pop(index)
        self._stores[turn].free(index)

    def close(self) -> None:
        """Give the space back."""
        for store in self._stores.values():
            store.close()

    def complete(self) -> dict[int, list[Rebuild]]:
        """By size, the rebuilds in which every tool has written and read, in their order."""
        whole = {tool for tool in self._stores if tool != LIVE}
        found = {
            nbytes: [rebuild for rebuild in rebuilds if rebuild.live and set(rebuild.read) == whole]
            for nbytes, rebuilds in self.rebuilds.items()
        }
        return {nbytes: rebuilds for nbytes, rebuilds in sorted(found.items()) if rebuilds}


@dataclass(frozen=True, slots=True)
class Model:
    """A network of :mod:`fastio_bench.workloads.training_models`, and the paper's table and network."""

    name: str
    label: str
    batch: int
    depth: int
    width: int
    source: str
    paper: str


@dataclass
class Training:
    """A model in training, and what the rebuilds found until now: by size, those in which all tools took part."""

    model: Model
    steps: int = 0
    found: dict[int, list[Rebuild]] = field(default_factory=dict)

    def run(self, folder: Path, seconds: float, tell: Callable[[float], None] = lambda passed: None) -> None:
        """Train for so many seconds, at least one step; ``tell`` hears of those passed. Nothing is lost by Ctrl-C."""
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
