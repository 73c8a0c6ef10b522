"""Differential test of ``fastio.Offload``: gradients equal plain torch's bit for bit, errors have the same type.

    python tests/support/differential/offload.py --examples 200 --seed 1 [--start 0]

An example is one entry of torch's databases (operators also in place, modules in training and evaluation) in one dtype,
with all its samples, each under settings of its own. The examples and their order depend only on the seed. The test
ends at the first difference, with status 1 and the command that repeats it. After a difference plain torch runs again:
operators whose gradients differ each time are only counted.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import database_runs
import torch
from database_runs import DatabaseRuns, Outcome, same_bits
from offload_subjects import Forward, Group, Sample, groups, seeded
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy

import fastio
from fastio.offload import BlockStore, saved_tensors
from fastio.offload.recompute import calls

RECOMPUTE = "recompute"  # a policy of operators that recomputes whatever can be
POLICIES = ("all", "all", "all", "fastensor", "flashneuron", "optimal", "optimal", "vdnn-all", "vdnn-conv", RECOMPUTE)
CODECS = ("none", "none", "lossless", "csr")
BUDGETS = (None, None, 0, "4KiB", "1MiB")
HOST_BUDGETS = (0, 0, 0, "16KiB", "1MiB")
MOST = 40  # samples of one example; of more, so many are drawn


@dataclass(frozen=True)
class Settings:
    """Settings of one sample. ``steps``: forward passes, each compared; planned policies plan after the first."""

    policy: str
    codec: str
    budget: Any
    host_budget: Any
    driver: str  # the store's
    written: bool  # backward begins after all writes are finished
    inside: bool  # backward runs within the context
    order: int  # 2: also gradients of gradients
    steps: int

    @classmethod
    def drawn(cls, rng: random.Random, twice: bool) -> Settings:
        policy = rng.choice(POLICIES)
        simple = policy in ("all", "fastensor", RECOMPUTE)
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


def outcome(forward: Forward, seed: int, offload: fastio.Offload | None, settings: Settings) -> Outcome:
    """Run forward, within ``offload`` if there is one, and backward.

    Returns the gradients, or the error's type and the pass that raised it.
    """
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
            for disk in offload._tiers.disks.values():
                disk.drain()
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


class OffloadRuns(DatabaseRuns[Group]):
    """Examples of Offload. Stores are created once; every tensor with at least a byte is offloaded."""

    def __init__(self, seed: int, folder: str) -> None:
        super().__init__(seed, groups())
        self._folder = folder
        self._stores = {driver: BlockStore(folder, driver=driver) for driver in ("uring", "threads")}
        assert saved_tensors._MIN_NBYTES
        saved_tensors._MIN_NBYTES = calls.SMALL = 1

    def samples(self, entry: Group) -> Iterable[Sample]:
        return entry.samples()

    def run_samples(self, entry: Group, samples: list[Sample], rng: random.Random) -> None:
        if len(samples) > MOST:
            samples = rng.sample(samples, MOST)
        for sample in samples:
            self._run(entry, sample, Settings.drawn(rng, sample.twice), rng.randrange(2**31))

    def _run(self, group: Group, sample: Sample, settings: Settings, seed: int) -> None:
        self.counts["samples"] += 1
        plain = outcome(sample.forward, seed, None, settings)
        self.counts["errors" if isinstance(plain, str) else "gradients"] += 1
        store: Any = self._stores.get(settings.driver, self._folder)
        offload = fastio.Offload(
            store=store,
            policy=_recompute if settings.policy == RECOMPUTE else settings.policy,
            codec=settings.codec,
            budget=settings.budget,
            host_budget=settings.host_budget,
        )
        for step in range(settings.steps):
            self.counts["runs"] += 1
            got = outcome(sample.forward, seed, offload, settings)
            self.compare(
                group.name,
                plain,
                got,
                partial(outcome, sample.forward, seed, None, settings),
                partial(_message, f"{group.name}, {settings}, step {step}", plain, got),
            )
        for name, traffic in offload.counts.traffic.items():
            self.counts[f"{name} writes"] += traffic.writes
            self.counts[f"{name} reads"] += traffic.reads
        offload.close()


def _recompute(_context: Any, _operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def _message(name: str, plain: Outcome, got: Outcome) -> str:
    if isinstance(plain, str) or isinstance(got, str):
        one, other = (each if isinstance(each, str) else "gradients" for each in (plain, got))
        return f"{name}: plain {one}, offloaded {other}"
    differing = [number for number, (a, b) in enumerate(zip(plain, got, strict=True)) if not same_bits(a, b)]
    return f"{name}: gradients {differing} differ"


def main(arguments: Sequence[str]) -> int:
    """Run a range of examples of Offload; the status is 1 at the first difference."""
    return database_runs.main(arguments, __doc__, OffloadRuns)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
