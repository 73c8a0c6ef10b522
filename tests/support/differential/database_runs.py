"""Runs examples of torch's own test databases with plain torch and with fastio, and compares the outcomes."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from offload_subjects import seeded
from torch import Tensor

PLAIN_RUNS = 4  # further runs of plain torch, to see whether an operator gives the same result each time

Outcome = list[Tensor | None] | str
"""The tensors that a computation gave, or the type of its error."""
Entry = TypeVar("Entry")


class Difference(Exception):
    """fastio gave another outcome than plain torch."""


class DatabaseRuns(Generic[Entry]):
    """Examples of database entries; example ``number`` depends only on the seed and the number."""

    def __init__(self, seed: int, entries: Sequence[Entry]) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.unsteady: set[str] = set()
        self._entries = entries
        self._order = list(range(len(entries)))
        random.Random(seed).shuffle(self._order)
        torch.set_num_threads(1)  # the samples are small

    def __len__(self) -> int:
        return len(self._entries)

    def run(self, number: int) -> None:
        """Run an example. Raises Difference."""
        entry = self._entries[self._order[number % len(self._order)]]
        rng = random.Random(f"{self.seed} {number}")
        self.counts["examples"] += 1
        seeded(rng.randrange(2**31))
        try:
            samples = list(self.samples(entry))
        except Exception:
            self.counts["without samples"] += 1  # torch's own error, as where the samples need another package
            return
        self.run_samples(entry, samples, rng)

    def samples(self, entry: Entry) -> Iterable[Any]:
        """The samples of an entry."""
        raise NotImplementedError

    def run_samples(self, entry: Entry, samples: list[Any], rng: random.Random) -> None:
        """Run samples with settings drawn from ``rng``. Raises Difference."""
        raise NotImplementedError

    def compare(
        self, name: str, plain: Outcome, got: Outcome, run_plain: Callable[[], Outcome], message: Callable[[], str]
    ) -> None:
        """Raises Difference unless the outcomes are equal, or plain torch itself gives different ones."""
        if same(plain, got):
            return
        again = (run_plain() for _ in range(PLAIN_RUNS))
        if not any(not same(plain, one) or same(got, one) for one in again):
            raise Difference(message())
        self.counts["unsteady"] += 1
        self.unsteady.add(name)


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are equal, bit for bit."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(same_bits(a, b) for a, b in zip(one, other, strict=True))


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors are equal in layout, dtype, shape and every bit, or both None."""
    if one is None or other is None:
        return one is other
    if (one.layout, one.dtype, one.shape) != (other.layout, other.dtype, other.shape):
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.equal(_bytes(one), _bytes(other))


def _bytes(tensor: Tensor) -> Tensor:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    return flat.copy_(tensor.detach().reshape(-1)).view(torch.uint8)


def main(arguments: Sequence[str], description: str | None, make: Callable[[int, str], DatabaseRuns[Any]]) -> int:
    """Run a range of examples; the status is 1 at the first difference. ``make`` takes a seed and a folder."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, required=True, help="how many; 0: each entry of the databases once")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="the number of the first example")
    given = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        runs = make(given.seed, folder)
        examples = given.examples or len(runs)
        began = time.perf_counter()
        for number in range(given.start, given.start + examples):
            try:
                runs.run(number)
            except Difference as difference:
                print(f"{difference}", flush=True)
                again = f"--seed {given.seed} --start {number} --examples 1"
                print(f"again: python {Path(sys.argv[0])} {again}", flush=True)
                return 1
        seconds = time.perf_counter() - began
    counts = ", ".join(f"{count} {name}" for name, count in runs.counts.items())
    print(f"{counts}; {runs.counts['runs'] / max(seconds, 1e-9):.0f} runs/s; {len(runs)} entries in the databases")
    if runs.unsteady:
        print(f"different each time, in plain torch too: {', '.join(sorted(runs.unsteady))}")
    return 0
