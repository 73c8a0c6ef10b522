"""Differential test of ``fastio.Offload``: gradients bit for bit those of plain torch, errors of the same type.

    python tests/support/differential/offload.py --examples 200 --seed 1 [--start 0]

An example is one entry of torch's databases (operators also in place, modules in training and not) in one dtype, with
all its samples, each under settings of its own. Which examples there are, and in which order, follows from the seed;
example ``k`` is the same whatever came before it. Ends at the first difference, with status 1 and the command that
repeats it. Operators that give other gradients each time are counted: plain torch is run again where there is a
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from offload_subjects import Forward, Group, Sample, groups, seeded
from torch import Tensor

import fastio
from fastio.offload import BlockStore, manager

POLICIES = ("all", "all", "all", "fastensor", "flashneuron", "optimal", "vdnn-all", "vdnn-conv")
CODECS = ("none", "none", "lossless", "csr")
BUDGETS = (None, None, 0, "4KiB", "1MiB")
HOST_BUDGETS = (0, 0, 0, "16KiB", "1MiB")
PLAIN_AGAIN = 4  # runs of plain torch that tell whether an operator gives the same gradients each time
MOST = 40  # samples of one example: of more, so many are drawn


@dataclass(frozen=True)
class Settings:
    """How a sample is run. ``steps``: forward passes, each compared; planned policies plan after the first."""

    policy: str
    codec: str
    budget: Any
    host_budget: Any
    driver: str  # of the store
    written: bool  # backward begins when all that moves is written
    inside: bool  # backward runs within the context
    order: int  # 2: gradients of gradients too
    steps: int

    @classmethod
    def drawn(cls, rng: random.Random, twice: bool) -> Settings:
        policy = rng.choice(POLICIES)
        simple = policy in ("all", "fastensor")
        budget = rng.choice(BUDGETS) if simple else rng.choice((None, "1GiB"))
        order = 2 if twice and rng.random() < 0.3 else 1
        driver = rng.choice(("uring", "uring", "uring", "threads"))
        return cls(
            policy,
            rng.choice(CODECS),
            budget,
            rng.choice(HOST_BUDGETS),
            "tools" if policy == "fastensor" and rng.random() < 0.1 else driver,
            rng.random() < 0.7,
            rng.random() < 0.2,
            order,
            1 if simple else 2,
        )


Outcome = list[Tensor | None] | str
"""Gradients, or the type of the error and where it was raised."""


def outcome(forward: Forward, seed: int, offload: fastio.Offload | None, settings: Settings) -> Outcome:
    """Run forward and backward, the forward pass within ``offload``; plain without one."""
    seeded(seed)
    where = "forward"
    try:
        with offload or contextlib.nullcontext():
            outputs, leaves = forward()
            if settings.inside:
                where = "backward"
                return _gradients(outputs, leaves, settings.order)
        where = "backward"
        if offload is not None and settings.written:
            for tier in offload._levels:
                tier.drain()
        return _gradients(outputs, leaves, settings.order)
    except Exception as error:
        return f"{type(error).__name__} in {where}"


def _gradients(outputs: Sequence[Tensor], leaves: Sequence[Tensor], order: int) -> list[Tensor | None]:
    found: list[Tensor | None] = []
    for _ in range(order):
        outputs = [one for one in outputs if one.requires_grad]
        if not outputs or not leaves:
            break
        along = [torch.randn_like(one) for one in outputs]
        given = torch.autograd.grad(outputs, leaves, along, allow_unused=True, create_graph=order > 1)
        found += [None if one is None else one.detach() for one in given]
        outputs = [one for one in given if one is not None and one.layout is torch.strided]
    return found


def same(one: Outcome, other: Outcome) -> bool:
    """Whether two outcomes are the same, bit for bit."""
    if isinstance(one, str) or isinstance(other, str):
        return one == other
    return len(one) == len(other) and all(_same(a, b) for a, b in zip(one, other, strict=True))


def _same(one: Tensor | None, other: Tensor | None) -> bool:
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


class Difference(Exception):
    """Offload gave something else than plain torch."""


class Bench:
    """Runs examples. Stores are made once; every tensor with a byte is moved, however small."""

    def __init__(self, seed: int, folder: str) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.unsteady: set[str] = set()
        self._folder = folder
        self._stores = {driver: BlockStore(folder, driver=driver) for driver in ("uring", "threads")}
        self._groups = groups()
        self._order = list(range(len(self._groups)))
        random.Random(seed).shuffle(self._order)
        manager._SMALLEST = 1
        torch.set_num_threads(1)  # the samples are small

    def __len__(self) -> int:
        return len(self._groups)

    def example(self, number: int) -> Group:
        return self._groups[self._order[number % len(self._order)]]

    def run(self, number: int) -> None:
        """Run an example. Raises Difference."""
        group, rng = self.example(number), random.Random(f"{self.seed} {number}")
        self.counts["examples"] += 1
        seeded(rng.randrange(2**31))
        try:
            samples = list(group.samples())
        except Exception:
            self.counts["without samples"] += 1  # of torch's own: what they need is not installed, say
            return
        if len(samples) > MOST:
            samples = rng.sample(samples, MOST)
        for sample in samples:
            self._run(group, sample, Settings.drawn(rng, sample.twice), rng.randrange(2**31))

    def _run(self, group: Group, sample: Sample, settings: Settings, seed: int) -> None:
        self.counts["samples"] += 1
        plain = outcome(sample.forward, seed, None, settings)
        self.counts["errors" if isinstance(plain, str) else "gradients"] += 1
        store: Any = self._stores.get(settings.driver, self._folder)
        offload = fastio.Offload(
            store=store,
            policy=settings.policy,
            codec=settings.codec,
            budget=settings.budget,
            host_budget=settings.host_budget,
        )
        for step in range(settings.steps):
            self.counts["runs"] += 1
            got = outcome(sample.forward, seed, offload, settings)
            if not same(plain, got) and not self._is_unsteady(sample.forward, seed, settings, plain, got):
                raise Difference(f"{group.name}, {settings}, step {step}: {_told(plain, got)}")
            if not same(plain, got):
                self.counts["unsteady"] += 1
                self.unsteady.add(group.name)
        for name, traffic in offload.counts.traffic.items():
            self.counts[f"{name} writes"] += traffic.writes
            self.counts[f"{name} reads"] += traffic.reads
        offload.close()

    def _is_unsteady(self, forward: Forward, seed: int, settings: Settings, plain: Outcome, got: Outcome) -> bool:
        """Whether plain torch itself gives other gradients each time, or these at times."""
        again = [outcome(forward, seed, None, settings) for _ in range(PLAIN_AGAIN)]
        return any(not same(plain, one) or same(got, one) for one in again)


def _told(plain: Outcome, got: Outcome) -> str:
    if isinstance(plain, str) or isinstance(got, str):
        one, other = (told if isinstance(told, str) else "gradients" for told in (plain, got))
        return f"plain {one}, offloaded {other}"
    differing = [number for number, (a, b) in enumerate(zip(plain, got, strict=True)) if not _same(a, b)]
    return f"gradients {differing} differ"


def main(arguments: Sequence[str], make: Callable[[int, str], Any] = Bench) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, required=True, help="how many; 0: each entry of the databases once")
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--start", type=int, default=0, help="the number of the first example")
    told = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        bench = make(told.seed, folder)
        examples = told.examples or len(bench)
        began = time.perf_counter()
        for number in range(told.start, told.start + examples):
            try:
                bench.run(number)
            except Difference as difference:
                print(f"{difference}", flush=True)
                again = f"--seed {told.seed} --start {number} --examples 1"
                print(f"again: python {Path(sys.argv[0])} {again}", flush=True)
                return 1
        seconds = time.perf_counter() - began
    counts = ", ".join(f"{count} {name}" for name, count in bench.counts.items())
    print(f"{counts}; {bench.counts['runs'] / max(seconds, 1e-9):.0f} runs/s; {len(bench)} entries in the databases")
    if bench.unsteady:
        print(f"other gradients each time, in plain torch too: {', '.join(sorted(bench.unsteady))}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
