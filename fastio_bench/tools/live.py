"""Times every tool and ``policy="auto"`` side by side at mixed sizes."""

from __future__ import annotations

import gc
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

import fastio
from fastio import dicts
from fastio.transports import registry, selection
from fastio.transports.transport import LOAD, SAVE
from fastio_bench.harness import page_cache
from fastio_bench.harness.interrupts import held
from fastio_bench.harness.memory_reserve import Reserve
from fastio_bench.harness.rounds import Failure, Measured, SystemClock, clocked, describe, undisturbed
from fastio_bench.machine import host
from fastio_bench.tools.trace import COLD, DURABLE, Row

AUTO = "auto"
SMALLEST, SELDOM, LARGEST = 4 << 10, 16 << 20, 256 << 20
SECONDS_PER_GB = 1.2  # of one tool's call, roughly: for the time left
SECONDS_PER_CALL = 0.004

_FILE = "of-all-tools"
_ATTEMPTS, _MOMENT = 4, 0.05  # seconds
_CPU = frozenset({"cpu"})


def sizes(count: int, largest: int = LARGEST) -> list[int]:
    """``count`` sizes in bytes: every octave up to 16 MiB equally often, larger ones less often the larger they are.

    So no octave beyond 16 MiB takes more time than another.
    """
    chance, found = random.Random(count), list[int]()
    while len(found) < count:
        nbytes = round(SMALLEST * (largest / SMALLEST) ** chance.random())
        if chance.random() * nbytes < SELDOM:
            found.append(nbytes)
    return found


def tools(work: str) -> tuple[str, ...]:
    """The tools that a dictionary may choose for a work, including those of heavy libraries."""
    for name in registry.names():
        registry.find(name)  # imports the tool's library if it is installed
    form, _, what = work.partition(" ")
    return selection.able(LOAD if what.endswith("load") else SAVE, form, _CPU, "object")[0]


@contextmanager
def fresh_dictionaries(folder: Path) -> Iterator[None]:
    """Let ``policy="auto"`` start from the shipped dictionaries and learn into a temporary folder in the block."""
    variable = "FASTIO_DICTIONARY_DIR"
    before = os.environ.get(variable)
    dicts.flush()
    dicts.forget()
    try:
        os.environ[variable] = str(folder / "dictionaries")
        yield
    finally:
        with held():  # else the dictionaries would be written at exit, into the removed folder
            dicts.forget()
            if before is None:
                os.environ.pop(variable, None)
            else:
                os.environ[variable] = before


@dataclass
class Comparison:
    """Runs all tools, and with ``auto`` also ``policy="auto"``, at each work for each size.

    Each size at a work gives one :class:`Row`, in which auto has the name :data:`AUTO`. ``chosen`` has the tool that
    auto chose, for each row with auto. A tool that fails gives a :class:`Failure` and takes no further part in that
    work. ``again``: the number of calls that were timed again because the host disturbed them
    (:mod:`fastio_bench.machine.host`).
    """

    works: Sequence[str]
    sizes: Sequence[int]
    auto: bool
    chosen: list[str] = field(default_factory=list)
    again: int = 0
    tell: Callable[[str, float], None] = field(default=lambda what, weight: None)
    _tools: dict[str, list[str]] = field(default_factory=dict)
    _measured: set[str] = field(default_factory=set)

    def weights(self) -> list[float]:
        """The weight of every row: its seconds, roughly."""
        return [_weight(nbytes) * len(self._contestants(work)) for nbytes in self.sizes for work in self.works]

    def run(self, folder: Path) -> Iterator[Row | Failure]:
        """Every outcome, as soon as it is known."""
        chance = random.Random(len(self.sizes))
        values = torch.randint(256, (max(self.sizes),), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
        for nbytes in self.sizes:
            tensor = values[:nbytes].clone()  # its own storage: saving a view would save the whole storage
            gc.collect()
            _free_memory(nbytes)
            for work in self.works:
                yield from self._compare(work, tensor, folder, chance)
            for path in folder.glob(f"{_FILE}.*"):
                path.unlink()

    def _compare(self, work: str, tensor: torch.Tensor, folder: Path, chance: random.Random) -> Iterator[Row | Failure]:
        nbytes, took, chosen = tensor.nbytes, dict[str, float](), ""
        what = f"{work}, {nbytes / 1e6:,.3g} MB"
        self.tell(what, 0)
        contestants = self._contestants(work)
        path = folder / f"{_FILE}.{work.partition(' ')[0]}"
        if work.endswith("load") and not path.exists():
            # Durable: else the first tool that reads past the page cache waits for the write-back.
            fastio.save(tensor, path, policy="posix")
        for contestant in chance.sample(contestants, len(contestants)):
            try:
                took[contestant], used = self._time(work, tensor, path, contestant)
                chosen = used if contestant == AUTO else chosen
            except (
                page_cache.ResidencyError
            ) as error:  # not a tool's failure: the row is left out, or the whole work if no row succeeds
                if work not in self._measured:
                    self._tools[work] = []
                    yield Failure(work, what, "all tools", 0, describe(error))
                self.tell(what, _weight(nbytes) * len(contestants))
                return
            except Exception as error:  # any error of a tool is a result, not the end of the run
                self._tools[work].remove(contestant)
                yield Failure(work, what, contestant, 0, describe(error))
        self.tell(what, _weight(nbytes) * len(contestants))
        if took:
            self._measured.add(work)
            self.chosen += [chosen] if AUTO in took else []
            yield Row(work, nbytes, {tool: took[tool] for tool in contestants if tool in took})

    def _time(self, work: str, tensor: torch.Tensor, path: Path, contestant: str) -> tuple[float, str]:
        """Time one call, again if the host took memory.

        Returns the caller's seconds and the tool that moved the bytes.
        """
        measured, again = undisturbed(partial(self._once, work, tensor, path, contestant), tensor.nbytes)
        self.again += again
        return measured.seconds, measured.way

    @staticmethod
    def _once(work: str, tensor: torch.Tensor, path: Path, contestant: str) -> Measured:
        """Time one call; its way is the tool that moved the bytes. A tool that fell back to another has failed."""
        clock = SystemClock()
        with fastio.record() as transfers:
            if work.endswith("load"):
                _bring(path, work.endswith(COLD))
            if tensor.nbytes >= host.LARGE:
                _free_memory(tensor.nbytes)
            if work.endswith("load"):
                loaded, took = clocked(partial(fastio.load, path, policy=contestant), clock)
                if loaded.nbytes != tensor.nbytes:
                    raise ValueError(f"{contestant} loaded {loaded.nbytes} of {tensor.nbytes} bytes")
            else:
                durable = work.endswith(DURABLE)
                _, took = clocked(partial(fastio.save, tensor, path, policy=contestant, durable=durable), clock)
                path.unlink()
        used = transfers[-1].tool
        if contestant not in (AUTO, used):
            raise ValueError(f"{used} did it: {transfers[-1].reason}")
        return replace(took, way=used)

    def _contestants(self, work: str) -> list[str]:
        if work not in self._tools:
            self._tools[work] = [*tools(work), *([AUTO] if self.auto else [])]
        return self._tools[work]


def _bring(path: Path, is_cold: bool) -> None:
    """Bring the file out of the page cache or into it. Retries, since another processor may hold a page."""
    for left in reversed(range(_ATTEMPTS)):
        try:
            (page_cache.drop if is_cold else page_cache.warm)(path)
            return
        except page_cache.ResidencyError:
            if not left:
                raise
            time.sleep(_MOMENT)


def _free_memory(nbytes: int) -> None:
    """Have free, resident-backed memory for a call that moves ``nbytes``, also through the page cache."""
    with Reserve(2 * nbytes):
        pass


def _weight(nbytes: int) -> float:
    return SECONDS_PER_CALL + SECONDS_PER_GB * nbytes / 1e9
