"""Passes of the garbage collector are rare during a DCP save, and as frequent as before after it, even if it fails."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

from fastio.distributed import Writer
from fastio.distributed.rare_gc import RareGC

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
    pytest.mark.filterwarnings("ignore:torch.distributed is unavailable"),  # the text in torch 2.6
]
USUAL = (500, 7, 9)


@pytest.fixture(scope="module", autouse=True)
def unfrozen() -> Iterator[None]:
    """Without the frozen objects of the other tests, which are frozen again afterwards."""
    gc.unfreeze()
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


class Planner(DefaultSavePlanner):
    """Records the collector's thresholds while it plans, and fails at one step."""

    def __init__(self, fails_at: str) -> None:
        super().__init__()
        self._fails_at = fails_at
        self.seen: list[tuple[int, int, int]] = []

    def create_local_plan(self) -> Any:
        self._step("local")
        return super().create_local_plan()

    def create_global_plan(self, all_plans: Any) -> Any:
        self._step("global")
        return super().create_global_plan(all_plans)

    def resolve_data(self, write_item: Any) -> Any:
        self._step("data")
        return super().resolve_data(write_item)

    def _step(self, name: str) -> None:
        self.seen.append(gc.get_threshold())
        if name == self._fails_at:
            raise ValueError("the plan fails")


@pytest.mark.parametrize("fails_at", ["", "local", "global", "data"])
def test_passes_are_rare_only_during_a_save_even_if_it_fails(tmp_path: Path, fails_at: str) -> None:
    planner = Planner(fails_at)
    state = {"tensor": torch.ones(30_000)}
    if fails_at:
        with pytest.raises(CheckpointException, match="the plan fails"):
            dcp.save(state, storage_writer=Writer(tmp_path / "first"), planner=planner)
        gc.collect()  # the error's traceback keeps the writer alive
    else:
        dcp.save(state, storage_writer=Writer(tmp_path / "first"), planner=planner)
    assert planner.seen
    assert {young > 10 * USUAL[0] for young, _, _ in planner.seen} == {True}
    assert gc.get_threshold() == USUAL
    dcp.save(state, storage_writer=Writer(tmp_path / "second"))
    assert gc.get_threshold() == USUAL


def test_overlapping_saves_and_other_code_leave_the_right_threshold() -> None:
    one, other = RareGC(), RareGC()
    one.end()  # without begin
    assert gc.get_threshold() == USUAL
    one.begin()
    other.begin()
    other.end()
    one.end()
    assert gc.get_threshold() == USUAL
    one.begin()
    del one
    assert gc.get_threshold() == USUAL
    other.begin()
    gc.set_threshold(1234, 5, 6)
    other.end()
    assert gc.get_threshold() == (1234, 5, 6)
    gc.set_threshold(0)  # a collector that is off stays off
    other.begin()
    assert gc.get_threshold()[0] == 0
    other.end()
    assert gc.get_threshold()[0] == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_end_causes_no_pass_unless_objects_are_frozen(frozen: bool) -> None:
    """If other code froze objects, they must stay frozen, and a pass runs. Python 3.12 freezes some of its own."""
    generations: list[int] = []

    def note(phase: str, info: dict[str, Any]) -> None:
        generations.append(info["generation"])

    gc.collect()
    before: list[int] = []
    if frozen:
        gc.freeze()
    some_are_frozen = gc.get_freeze_count() > 0
    passes = RareGC()
    passes.begin()
    gc.callbacks.append(note)
    try:
        plans = [[number] for number in range(50 * USUAL[0])]
        passes.end()
        more = [[number] for number in range(USUAL[0] // 10)]
    finally:
        gc.callbacks.remove(note)
        is_tracked = any(each is before for each in gc.get_objects())  # frozen objects are not among them
        gc.unfreeze()
    assert len(plans) > len(more)
    assert bool(generations) == some_are_frozen
    assert is_tracked != frozen
