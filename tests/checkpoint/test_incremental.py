"""Incremental steps: unchanged tensors are neither written nor stored again, and never lost."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from fastio.checkpoint import Checkpointer
from fastio.checkpoint.saving import snapshot
from parted import PART_BYTES, PARTS, changed_once, check, files_of, make
from trainings import folder_of


def clone(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in state.items()}


def test_a_state_larger_than_the_budget_is_saved_in_full_and_told(tmp_path: Path) -> None:
    state = {"a": torch.zeros(1000)}
    with Checkpointer(tmp_path, incremental=True, memory_budget=1000) as checkpointer:
        with pytest.warns(RuntimeWarning, match=r"incremental=True has no effect: the state has .*4,000 bytes"):
            checkpointer.save(0, state)
        checkpointer.save(1, state)  # a second warning would be an error


def test_only_changes_are_written(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True, keep=2) as checkpointer:
        checkpointer.save(0, state)
        kept = {0: clone(state)}
        for step in range(1, 6):
            state["part3"].add_(1)
            state["count"] = step
            checkpointer.save(step, state)
            kept[step] = clone(state)
            checkpointer.wait()
            assert files_of(tmp_path, step) == ["changes.pt", "step-0000000000.1.state.pt"]
            assert (folder_of(tmp_path, step) / "changes.pt").stat().st_size < 1.5 * PART_BYTES
            check(checkpointer, step, kept[step])
        # The first step was removed; its file stays as one file that both other steps link to.
        assert (
            checkpointer.prune() == []
        )  # a step is written before the files of old ones are gone, not so when this ends
        assert checkpointer.steps() == [4, 5]
        shared = [folder_of(tmp_path, step) / "step-0000000000.1.state.pt" for step in (4, 5)]
        assert shared[0].samefile(shared[1])
        assert shared[0].stat().st_nlink == 2
        for step in (4, 5):
            check(checkpointer, step, kept[step])
    live = make()
    with Checkpointer(tmp_path) as checkpointer:
        address = live["part7"].data_ptr()
        live["part7"].zero_()
        checkpointer.restore(into=live)
        assert live["part7"].data_ptr() == address
        assert all(torch.equal(live[f"part{n}"], kept[5][f"part{n}"]) for n in range(PARTS))
        assert live["count"] == 5


def test_space_is_bounded_when_changes_move_between_tensors(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True, keep=2) as checkpointer:
        kinds = []
        last = state
        for step in range(30):
            state[f"part{step % PARTS}"].add_(1)
            checkpointer.save(step, state)
            checkpointer.wait()
            files = files_of(tmp_path, step)
            kinds.append(files[0])
            # Space on the disk is bounded: now and then a step is written in full again.
            assert len(files) <= 9
            size = sum((folder_of(tmp_path, step) / name).stat().st_size for name in files)
            assert size < 3.3 * PARTS * PART_BYTES
            check(checkpointer, step, state)
            if step:
                check(checkpointer, step - 1, last)
            last = clone(state)
    assert 1 < kinds.count("state.pt") < 10


def test_step_is_full_if_too_much_changed(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True) as checkpointer:
        checkpointer.save(0, state)
        for name in range(6):
            state[f"part{name}"][-1].add_(1)  # a change of the last byte counts too
        checkpointer.save(1, state)
        checkpointer.wait()
        assert files_of(tmp_path, 1) == ["state.pt"]
        check(checkpointer, 1, state)
        state["more"] = torch.ones(5)  # another structure
        checkpointer.save(2, state)
        checkpointer.wait()
        assert files_of(tmp_path, 2) == ["state.pt"]
        check(checkpointer, 2, state)


def test_same_step_saved_again_has_only_its_own_files(tmp_path: Path) -> None:
    state = make()
    with Checkpointer(tmp_path, incremental=True) as checkpointer:
        for count in range(4):
            state["part0"].add_(1)
            state["count"] = count
            checkpointer.save(7, state)
            check(checkpointer, 7, state)
            names = set(os.listdir(folder_of(tmp_path, 7)))
            assert names == {"manifest.json", *files_of(tmp_path, 7)}


def test_step_after_a_failed_save_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from fastio.checkpoint.saving import writing

    def fail(*_: Any) -> None:
        raise OSError(5, "the disk is gone")

    with changed_once(tmp_path) as (checkpointer, state):
        with monkeypatch.context() as patch:
            patch.setattr(writing, "save_layout", fail)
            checkpointer.save(1, state)
            with pytest.raises(OSError, match="the disk is gone"):
                checkpointer.wait()
        checkpointer.save(2, state)
        check(checkpointer, 2, state)
        assert checkpointer.steps() == [0, 2]


@pytest.mark.parametrize("error", ["gone", "no links"])
def test_step_is_full_if_files_cannot_be_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: str) -> None:
    import shutil

    state = make()
    with Checkpointer(tmp_path, incremental=True) as checkpointer:
        checkpointer.save(0, state)
        checkpointer.wait()
        if error == "gone":
            shutil.rmtree(folder_of(tmp_path, 0))
        else:

            def refuse(*_: Any) -> None:
                raise PermissionError(1, "this filesystem has no hard links")

            monkeypatch.setattr(os, "link", refuse)
        checkpointer.save(1, state)
        check(checkpointer, 1, state)
        assert files_of(tmp_path, 1) == ["state.pt"]


def test_full_and_incremental_checkpointers_alternate_on_one_folder(tmp_path: Path) -> None:
    state = make()
    for step, incremental in enumerate([True, False, True, True]):
        with Checkpointer(tmp_path, incremental=incremental) as checkpointer:
            for number in range(2):
                state["part1"].add_(1)
                checkpointer.save(2 * step + number, state)
            check(checkpointer, 2 * step + 1, state)


@pytest.mark.parametrize("changed", [None, 0, 3 << 20, 33 << 20, (70 << 20) + 6])
def test_a_storage_on_a_device_is_compared_in_pieces(monkeypatch: pytest.MonkeyPatch, changed: int | None) -> None:
    """The device has no second copy of the whole storage. Host memory stands in for the device."""
    source = torch.zeros((70 << 20) + 7, dtype=torch.uint8)
    target = source.clone()
    if changed is not None:
        source[changed] = 1
    sizes = []

    def to(self: torch.Tensor, device: torch.device) -> torch.Tensor:
        sizes.append(self.numel())
        return self

    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "to", to)
        assert snapshot._copy_from_device(target, source, compare=True) == (changed is not None)
    assert target.equal(source)
    assert max(sizes) <= 32 << 20
    assert changed is not None or sum(sizes) == source.numel()
