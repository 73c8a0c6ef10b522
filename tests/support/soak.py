"""Saves, loads and trains for minutes, and fails if memory, descriptors or threads grow: ``make nightly ONLY=soak``."""

from __future__ import annotations

import argparse
import gc
import os
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

import fastio

WARM_UP = 200  # rounds before the first count: caches and dictionaries fill
GROWTH = 64 << 20  # bytes that resident memory may grow: the allocator's own


def counts() -> tuple[int, int, int]:
    """Resident bytes, open descriptors and threads of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE"), len(os.listdir("/proc/self/fd")), threading.active_count()


def one_round(folder: Path, chance: random.Random, model: torch.nn.Module, offload: fastio.Offload) -> None:
    """A save and a load in each format, compared with what was saved, and an offloaded step of training."""
    tensor = torch.rand(chance.choice([1, 1000, 250_000, 1_500_000]))
    for name in ("x.pt", "x.safetensors"):
        fastio.save({"weight": tensor}, folder / name)
        assert torch.equal(fastio.load(folder / name)["weight"], tensor), name
    fastio.save(tensor.numpy(), folder / "x.npy")
    assert torch.equal(torch.as_tensor(fastio.load(folder / "x.npy")), tensor)
    with offload:
        loss = model(torch.rand(64, 256)).square().mean()
    loss.backward()


def main() -> int:
    """Run for ``--minutes``; 1 if something grew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    torch.manual_seed(asked.seed)
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(4)))
    rounds = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        offload = fastio.Offload(model, store=folder, budget=0, policy="all")
        end = time.monotonic() + asked.minutes * 60
        while rounds <= WARM_UP or time.monotonic() < end:
            one_round(folder, chance, model, offload)
            rounds += 1
            if rounds == WARM_UP:
                before = counts()
        after = counts()
    print(f"{rounds:,} rounds; memory, descriptors, threads: {before} then {after}")
    return int(after[0] > before[0] + GROWTH or after[1] > before[1] or after[2] > before[2])


if __name__ == "__main__":
    sys.exit(main())
