"""What belongs together though it takes time: the copy of a state, a snapshot in memory, the removal of old steps."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fastio.checkpoint import Checkpointer
from fastio.checkpoint.folder import step_folders
from fastio.checkpoint.saving import parallel_copy
from trainings import folder_of

PIECE = 1 << 20


def make() -> dict[str, torch.Tensor]:
    """Sizes around pages, pieces and blocks; small ones between large ones."""
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
def test_a_copy_that_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, error: type[BaseException]
) -> None:
    state = make()
    left = 4

    class Breaking:
        @staticmethod
        def memmove(*arguments: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise error
            ctypes.memmove(*arguments)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # the main thread copies all, as Ctrl-C meets it
    monkeypatch.setattr(parallel_copy, "_CHUNK", PIECE)
    with Checkpointer(tmp_path, policy=policy, incremental=False) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(parallel_copy, "ctypes", Breaking)
            with pytest.raises(error):
                checkpointer.save(1, state)
        checkpointer.wait()  # nothing of it was begun
        assert checkpointer.steps() == [0]
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
        checkpointer.save(2, state)
        check(checkpointer, 2, state)


def test_what_passes_through_the_memory_is_not_taken_for_a_snapshot(tmp_path: Path) -> None:
    """The memory of a snapshot serves a state that is larger than the budget too; then nothing in it is unchanged."""
    small = {"tensor": torch.arange(30 << 20, dtype=torch.uint8)}
    large = {"tensor": torch.ones(40 << 20, dtype=torch.uint8)}
    with Checkpointer(tmp_path, incremental=True, memory_budget="32MiB") as checkpointer:
        for step, state in enumerate([small, large, small, small, large, small]):
            checkpointer.save(step, state)
            check(checkpointer, step, state)


# Removing


def test_what_is_replaced_goes_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is visible, and the one that it replaces is not, before that one's files are gone: they soon are."""
    import threading

    go = threading.Event()
    remove = step_folders.remove_all

    def slowly(*arguments: Any) -> None:
        assert go.wait(30)
        remove(*arguments)

    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(0, {"tensor": torch.zeros(3)})
        checkpointer.wait()
        monkeypatch.setattr(step_folders, "remove_all", slowly)
        checkpointer.save(1, {"tensor": torch.ones(3)})
        checkpointer.wait()
        assert checkpointer.steps() == [1]
        assert "state.pt" in os.listdir(folder_of(tmp_path, 0))
        checkpointer.save(2, {"tensor": torch.full((3,), 2.0)})  # taken, but not written before there is room
        assert not folder_of(tmp_path, 2).exists()
        go.set()
        checkpointer.wait()
        assert checkpointer.steps() == [2]
        assert checkpointer.prune() == []  # when nothing goes on
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000002"]


def test_what_cannot_be_removed_is_said_by_a_later_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        # A step of the number of one that is still there in part: it is not removed for that.
        checkpointer.save(0, {"tensor": torch.full((3,), 5.0)})
        checkpointer.wait()
        checkpointer.prune()
        check(checkpointer, 0, {"tensor": torch.full((3,), 5.0)})
        assert sorted(os.listdir(tmp_path)) == [".lock", "step-0000000000"]
