"""torchtitan: its checkpoint manager saves and loads by fastio, in files that its own loads, and loads those."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from fastio import CorruptFileError
from required_packages import require

require("torchtitan")
pytestmark = [pytest.mark.nightly, pytest.mark.filterwarnings("ignore")]


class Part:
    """Something with a state, as an optimizer of torchtitan has one."""

    def __init__(self, value: float) -> None:
        self.value = torch.full((3,), value)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value.copy_(state["value"])


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Any:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", f"file://{store}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Run:
    """A manager of a kind, and what it saves."""

    def __init__(self, folder: Path, ours: bool, value: float = 0, **config: Any) -> None:
        from torchtitan.components.checkpointer import CheckpointManager

        from fastio.integrations.torchtitan import FastCheckpointManager

        kind = FastCheckpointManager if ours else CheckpointManager
        self.model, self.optimizer, self.counter = torch.nn.Linear(300, 200), Part(value), Part(value + 1)
        torch.nn.init.constant_(self.model.weight, value)
        self.manager = kind.Config(enable=True, interval=1, **config).build(
            dataloader=None,
            model_parts=[self.model],
            optimizers=self.optimizer,
            lr_schedulers=Part(0),
            states={"train_state": self.counter},
            sd_adapter=None,
            base_folder=str(folder),
        )
        self.manager.states = {name: state for name, state in self.manager.states.items() if state is not None}
        assert type(self.manager) is kind

    def save(self, step: int) -> None:
        assert self.manager.save(step)
        self.manager.maybe_wait_for_staging()
        self.manager.maybe_wait_for_saving()

    def values(self) -> list[float]:
        return [float(self.model.weight.unique()), float(self.optimizer.value[0]), float(self.counter.value[2])]


@pytest.mark.parametrize("mode", ["disabled", "async", "async_with_pinned_mem"])
def test_manager_loads_what_it_saved(tmp_path: Path, mode: str) -> None:
    saved = Run(tmp_path, ours=True, value=4, async_mode=mode)
    if mode == "async_with_pinned_mem":  # torchtitan's own stager needs an accelerator
        options = StagingOptions(use_pinned_memory=False, use_non_blocking_copy=False)
        saved.manager.stager = DefaultStager(options)
    for step in (1, 2):
        saved.save(step)
    saved.manager.close()
    found = Run(tmp_path, ours=True)
    assert found.manager.load()
    assert found.values() == [4, 4, 5]
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step-1", "step-2"]


@pytest.mark.parametrize("ours", [True, False])
def test_both_managers_load_each_others_checkpoints(tmp_path: Path, ours: bool) -> None:
    Run(tmp_path, ours=ours, value=7).save(1)
    found = Run(tmp_path, ours=not ours)
    assert found.manager.load(1)
    assert found.values() == [7, 7, 8]


def test_old_steps_go_and_damage_is_an_error(tmp_path: Path) -> None:
    run = Run(tmp_path, ours=True, value=1, keep_latest_k=2)
    for step in (1, 2, 3):
        run.save(step)
    run.manager.close()  # waits for the removal of old steps
    assert sorted(os.listdir(tmp_path / "checkpoint")) == ["step-2", "step-3"]
    (file,) = (tmp_path / "checkpoint" / "step-3").glob("*.distcp")
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)
    with pytest.raises(CheckpointException) as raised:
        Run(tmp_path, ours=True).manager.load()
    assert isinstance(raised.value.failures[0][0], CorruptFileError)
