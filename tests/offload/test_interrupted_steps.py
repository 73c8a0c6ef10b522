"""A training step under Offload that is interrupted at any place where Python may run a signal's handler."""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fastio.offload import BlockStore, Offload, ToolStore
from fastio.offload.autograd.hooks import REPORTS_TOP_HOOKS, top_hooks
from fastio.offload.stores.disk_tier import DiskTier
from interrupting import interrupted_after

WIDTH = 64
NBYTES = 4 * WIDTH * WIDTH  # of each activation
CASES: dict[str, Any] = {  # store, settings, and the device if it is not the CPU
    "all": (BlockStore, {"policy": "all"}),
    "flashneuron": (BlockStore, {"policy": "flashneuron", "budget": 3 * NBYTES, "host_budget": 6 * NBYTES}),
    "optimal": (BlockStore, {"policy": "optimal", "budget": 3 * NBYTES}),
    "vdnn": (BlockStore, {"policy": "vdnn-all", "host_budget": 32 * NBYTES}, "simulated"),
    "tools": (ToolStore, {"policy": "all"}),
    "peer": (BlockStore, {"policy": "all", "budget": 3 * NBYTES}, "simulated"),
    "pinned": (partial(BlockStore, driver="threads"), {"policy": "all", "budget": 3 * NBYTES}, "simulated"),
}
PARAMETERS = [pytest.param(case, marks=[pytest.mark.simulated] * (len(CASES[case]) - 2)) for case in CASES]
# Python code cannot keep an interrupt from the beginning of __exit__: the next use says that a new Offload is needed.
LEAVING = {"__exit__", "end_thread", "_leave", "here", "remove", "end_pass"}


def staged_blocks(disk: DiskTier) -> int:
    """How many blocks a device's slab has, but for those of copies back that have ended."""
    staging = disk._moves._staging
    while staging is not None and staging.reap():
        pass
    return 0 if staging is None else len(staging.slab.blocks)


class Training:
    """A model, its gradients without Offload, and steps under one."""

    def __init__(self, store: Any, settings: dict[str, Any], device: str = "cpu") -> None:
        torch.manual_seed(0)
        self.store, self.settings = store, settings
        layers = [(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(2)]
        self.model = nn.Sequential(*itertools.chain.from_iterable(layers)).to(device)
        self.x = torch.randn(WIDTH, WIDTH).to(device)
        self.offload: Any = contextlib.nullcontext()
        self.step()
        self.plain = self.gradients()
        self.begin()

    def begin(self) -> None:
        self.offload = Offload(self.model, store=self.store, **self.settings)
        for _ in range(4):  # it is planned then
            self.step()

    def step(self) -> None:
        self.model.zero_grad()
        with self.offload:
            loss = self.model(self.x).square().sum()
        loss.backward()

    def gradients(self) -> list[torch.Tensor]:
        return [one.grad.clone() for one in self.model.parameters() if one.grad is not None]

    def check(self, where: str) -> None:
        """Check that nothing of the interrupted step is left, and that the next one gives the plain gradients."""
        refused = ""
        try:
            self.step()
        except RuntimeError as error:
            refused = str(error)
        if refused:
            assert "in use already in this thread" in refused, (where, refused)
            assert where.partition(":")[0] in LEAVING, where
            self.offload.close()
            self.begin()
        assert not REPORTS_TOP_HOOKS or top_hooks() is None, where
        assert all(map(torch.equal, self.gradients(), self.plain)), where
        gc.collect()
        assert self.offload.saved_tensors_alive == 0, where
        end = time.monotonic() + 60
        # Commands and copies that ran end, and their space is given back.
        while self.store.stats.bytes_used or any(map(staged_blocks, self.offload._tiers.disks.values())):
            assert time.monotonic() < end, where
            with self.offload:
                pass


def interrupt(case: str, folder: Path, numbers: Iterable[int]) -> Iterator[str]:
    """Interrupt a step at each of these places, as long as there are; yield where."""
    make, *given = CASES[case]
    with make(folder) as store:
        training = Training(store, *given)
        for number in numbers:
            where = interrupted_after(number, training.step, "fastio/offload")
            training.check(where)
            yield where
            if not where:
                break
        training.offload.close()


@pytest.mark.parametrize("case", PARAMETERS)
def test_a_step_interrupted_in_some_places_leaves_nothing(case: str, tmp_path: Path) -> None:
    assert all(interrupt(case, tmp_path, range(41, 1400, 137)))


@pytest.mark.nightly
@pytest.mark.parametrize("case", PARAMETERS)
def test_a_step_interrupted_anywhere_leaves_nothing(case: str, tmp_path: Path) -> None:
    places = list(interrupt(case, tmp_path, itertools.count(1)))
    assert len(places) > 1400
