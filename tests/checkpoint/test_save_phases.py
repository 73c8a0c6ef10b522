"""Steps of a save that can be interrupted: the copy of a state, chunks, the removal of old steps."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fastio._native import Control, CopyBatch
from fastio.checkpoint import Checkpointer
from fastio.checkpoint.folder import step_folders
from fastio.checkpoint.saving import parallel_copy
from trainings import folder_of

CHUNK = 1 << 20


def make() -> dict[str, torch.Tensor]:
    """Return tensors with sizes around those of pages, chunks and blocks, small ones between large ones."""
    generator = torch.Generator().manual_seed(0)
    sizes = [5 << 20, 10, (2 << 20) + 1, 20_000, 4096, (3 << 20) - 4096, 70_001, 0, (1 << 20) + 12_288, 100]
    return {
        f"{number}": torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
        for number, nbytes in enumerate(sizes)
    }


def check(checkpointer: Checkpointer, step: int, expected: dict[str, torch.Tensor]) -> None:
    checkpointer.verify(step)
    restored = checkpointer.restore(step)
    assert restored is not None
    assert all(torch.equal(restored.state[name], tensor) for name, tensor in expected.items())


@pytest.mark.parametrize("policy", ["uring", "numpy"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_copy_leaves_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, error: type[BaseException]
) -> None:
    state = make()

    def breaking(copies: Any) -> Any:
        batch = CopyBatch(copies)
        left = 4

        def run(control: Control, most: int) -> bool:
            nonlocal left
            left -= 1
            if left == 0:
                raise error
            return batch.run(control, most)

        return SimpleNamespace(begin=batch.begin, run=run, nbytes=batch.nbytes)

    # With one processor the main thread makes all copies, so that the error is raised there.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(parallel_copy, "_CHUNK", CHUNK)
    with Checkpointer(tmp_path, policy=policy, incremental=False) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(parallel_copy, "NativeBatch", breaking)
            with pytest.raises(error):
                checkpointer.save(1, make())  # elsewhere in memory, so another batch
        checkpointer.wait()  # no write was started
        assert checkpointer.steps() == [0]
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
        checkpointer.save(2, state)
        check(checkpointer, 2, state)


@pytest.mark.filterwarnings("ignore:.*incremental=True has no effect")
def test_step_after_a_chunked_save_is_not_compared_with_its_chunks(tmp_path: Path) -> None:
    """A state larger than the budget uses the snapshot's memory for its chunks, which makes the snapshot invalid."""
    small = {"tensor": torch.arange(30 << 20, dtype=torch.uint8)}
    large = {"tensor": torch.ones(40 << 20, dtype=torch.uint8)}
    with Checkpointer(tmp_path, incremental=True, memory_budget="32MiB") as checkpointer:
        for step, state in enumerate([small, large, small, small, large, small]):
            checkpointer.save(step, state)
            check(checkpointer, step, state)


# Removing


def test_replaced_step_is_removed_after_the_new_one_is_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new step is visible and the replaced one invisible before the files of the replaced one are removed."""
    import threading

    go = threading.Event()
    remove = step_folders.remove_all

    def slowly(*arguments: Any) -> None:
        assert go.wait(300)
        remove(*arguments)

    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(0, {"tensor": torch.zeros(3)})
        checkpointer.wait()
        monkeypatch.setattr(step_folders, "remove_all", slowly)
        checkpointer.save(1, {"tensor": torch.ones(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [1]
        assert "state.pt" in os.listdir(folder_of(tmp_path, 0))
        # This step is copied, but not written before the old one is removed.
        checkpointer.save(2, {"tensor": torch.full((3,), 2.0)})
        assert not folder_of(tmp_path, 2).exists()
        go.set()
        checkpointer.wait()
        assert checkpointer.steps() == [2]
        assert checkpointer.prune() == []  # waits until all work is done
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000002"]


def test_failed_removal_is_raised_by_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError(5, "the disk is gone")

    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(0, {"tensor": torch.zeros(3)})
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(step_folders, "remove_all", fail)
            checkpointer.save(1, {"tensor": torch.ones(3)})
            with pytest.raises(OSError, match="the disk is gone"):
                checkpointer.prune()
        assert checkpointer.steps() == [1]
        # A new step with the number of one whose files could not be removed stays.
        checkpointer.save(0, {"tensor": torch.full((3,), 5.0)})
        checkpointer.wait()
        checkpointer.prune()
        check(checkpointer, 0, {"tensor": torch.full((3,), 5.0)})
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
